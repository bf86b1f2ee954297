"""Orders and reports of the shop."""

from django.db import models


class Order(models.Model):
    """An order, with the ids of the jobs that it started."""

    email = models.EmailField()
    item = models.CharField(max_length=100)
    cents = models.PositiveIntegerField()
    made_at = models.DateTimeField(auto_now_add=True)
    picture = models.CharField(max_length=200, blank=True)
    small_picture = models.CharField(max_length=200, blank=True)
    mail_job = models.CharField(max_length=64, blank=True)
    picture_job = models.CharField(max_length=64, blank=True)

    @property
    def price(self) -> str:
        """The price for people."""
        return f"{self.cents // 100}.{self.cents % 100:02}"


class Report(models.Model):
    """A report that was asked for."""

    job = models.CharField(max_length=64)
    asked_at = models.DateTimeField(auto_now_add=True)

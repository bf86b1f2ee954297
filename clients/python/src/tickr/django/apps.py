"""The Django app, which has the command `tickr_worker`."""

from django.apps import AppConfig


class TickrConfig(AppConfig):
    """The app `tickr.django`. It has no models."""

    name = "tickr.django"
    label = "tickr"
    verbose_name = "tickr"

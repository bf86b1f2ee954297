"""The addresses of the shop."""

from django.conf import settings
from django.conf.urls.static import static
from django.urls import path

from shop import views

urlpatterns = [
    path("", views.index, name="index"),
    path("buy", views.buy, name="buy"),
    path("report", views.report, name="report"),
    *static(settings.MEDIA_URL, document_root=settings.MEDIA_ROOT),
]

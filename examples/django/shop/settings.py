"""Settings of the shop. It keeps its own rows in SQLite, and its jobs are in tickr."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("SHOP_DATA") or BASE_DIR / "data")
DATA_DIR.mkdir(parents=True, exist_ok=True)

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only-for-this-example")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django.contrib.staticfiles", "django_tasks", "tickr.django", "shop"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
STATIC_URL = "/static/"
MEDIA_URL = "/media/"
MEDIA_ROOT = DATA_DIR / "media"

# Web page and worker write to one file, so each waits for the other instead of failing.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "shop.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}

# Mails become files.
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = DATA_DIR / "mails"
DEFAULT_FROM_EMAIL = "shop@example.com"

TASKS = {
    "default": {
        "BACKEND": "tickr.django.TickrBackend",
        "QUEUES": ["default", "reports"],
        "OPTIONS": {"kind": "shop.task", "queue_prefix": "shop.", "max_attempts": 5},
    }
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}

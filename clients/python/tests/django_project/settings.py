"""Settings of the project. The environment says where tickr and MySQL are."""

import os
from urllib.parse import parse_qs, unquote, urlsplit

SECRET_KEY = "of the tests"
USE_TZ = True
TIME_ZONE = "Europe/Paris"

try:
    import django.tasks  # noqa: F401

    _BACKPORT = []
except ImportError:
    _BACKPORT = ["django_tasks"]

INSTALLED_APPS = [*_BACKPORT, "tickr.django", "tests.django_project"]

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}

if os.environ.get("TICKR_MYSQL_URL"):
    try:
        import pymysql

        pymysql.install_as_MySQLdb()
        _url = urlsplit(os.environ["TICKR_MYSQL_URL"])
        _socket = parse_qs(_url.query).get("socket")
        DATABASES["mysql"] = {
            "ENGINE": "django.db.backends.mysql",
            "NAME": _url.path.strip("/"),
            "USER": unquote(_url.username or "root"),
            "PASSWORD": unquote(_url.password or ""),
            "HOST": _socket[0] if _socket else _url.hostname,
            "PORT": "" if _socket else str(_url.port or 3306),
        }
    except ImportError:
        pass

_KIND = os.environ.get("TEST_KIND", "django.task")
_OPTIONS = {
    "kind": _KIND,
    "queue_prefix": f"{_KIND}.",
    "max_attempts": 2,
    "retry": {"delays_ms": [20]},
    "url": os.environ.get("TEST_URL") or os.environ.get("TICKR_URL") or "http://127.0.0.1:1",
    "timeout": 5,
}
TASKS = {
    "default": {"BACKEND": "tickr.django.TickrBackend", "QUEUES": ["default", "mail"], "OPTIONS": _OPTIONS},
}
if "mysql" in DATABASES:
    TASKS["outbox"] = {
        "BACKEND": "tickr.django.TickrBackend",
        "QUEUES": ["default"],
        "OPTIONS": {**_OPTIONS, "outbox": "mysql"},
    }

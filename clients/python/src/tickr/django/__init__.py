"""tickr in Django: a backend for tasks, a worker command, and jobs in `django.db.transaction`.

Add `tickr.django` to `INSTALLED_APPS`, and a backend to `TASKS`:

    TASKS = {
        "default": {
            "BACKEND": "tickr.django.TickrBackend",
            "OPTIONS": {"url": "http://127.0.0.1:7070", "outbox": "default"},
        }
    }

`manage.py tickr_worker` executes the tasks. Django 6.0 and later bring `django.tasks`; before, install `django-tasks`.
"""

from typing import TYPE_CHECKING, Any

from ..context import Context, current
from .outbox import enqueue_in_transaction

if TYPE_CHECKING:
    from .backend import TickrBackend

__all__ = ["TickrBackend", "current_context", "enqueue_in_transaction"]


def current_context() -> "Context | None":
    """Return the context of the attempt that runs here. None outside of a task of `tickr_worker`.

    With it a task reports its progress, saves checkpoints, and asks whether it was cancelled.
    """
    return current.get()


def __getattr__(name: str) -> Any:
    # django imports this package before the apps are ready, and a backend may be imported only later.
    if name == "TickrBackend":
        from .backend import TickrBackend

        return TickrBackend
    raise AttributeError(name)

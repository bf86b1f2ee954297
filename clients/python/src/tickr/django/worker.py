"""The worker for tasks."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone

from ..context import Context
from ..errors import Cancelled, Lost, Rejected, Released, Snoozed, Stopping
from ..kinds import App
from ._tasks import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from .backend import TickrBackend, moment, task_of


def app_for(backend: TickrBackend) -> App:
    """Return an App whose one kind executes the tasks of a backend."""
    app = App(backend.client)

    @app.kind(backend.kind, payload=Dict[str, Any], description="Tasks of Django")
    def execute(payload: Dict[str, Any], context: Context) -> Any:
        return run_task(backend, payload, context)

    return app


def run_task(backend: TickrBackend, payload: Dict[str, Any], context: Context) -> Any:
    """Execute a task in this thread, with the signals of the tasks framework, and return its value as JSON."""
    task = task_of(payload, backend.alias, context.queue[len(backend.queue_prefix) :])
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=context.job_id,
        status=TaskResultStatus("RUNNING"),
        enqueued_at=None,
        started_at=moment(context._job["started_at"]),
        finished_at=None,
        last_attempted_at=moment(context._job["started_at"]),
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=backend.alias,
        errors=[],
        # The number of attempts is the length of this list. Who executed the earlier ones is with the job.
        worker_ids=[context.kind] * context.attempt,
    )
    task_started.send(type(backend), task_result=result)
    try:
        arguments = (TaskContext(task_result=result), *result.args) if task.takes_context else result.args
        value = normalize_json(task.call(*arguments, **result.kwargs))
    except BaseException as error:
        if is_last(error, context):
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            result.errors.append(TaskError(exception_class_path=path, traceback=str(error)))
            _finish(result, TaskResultStatus("FAILED"))
            task_finished.send(type(backend), task_result=result)
        raise
    object.__setattr__(result, "_return_value", value)
    _finish(result, TaskResultStatus("SUCCESSFUL"))
    task_finished.send(type(backend), task_result=result)
    return value


def is_last(error: BaseException, context: Context) -> bool:
    """Return True if no attempt follows one that ended with this error."""
    if isinstance(error, (Snoozed, Released, Lost, Stopping)):
        return False
    if isinstance(error, Rejected) or type(error) is Cancelled:
        return True
    return context.attempt >= context.max_attempts


def _finish(result: TaskResult[Any], status: TaskResultStatus) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)


def around(run: Callable[[], Any]) -> Any:
    """Run a handler with database connections that are usable, as Django does around a request."""
    reset_queries()
    close_old_connections()
    try:
        return run()
    finally:
        close_old_connections()


def thread_ended() -> None:
    """Close the database connections of a thread."""
    connections.close_all()


def import_app(path: str) -> App:
    """Import an App by `module:name`. Raises ImportError or TypeError."""
    from django.utils.module_loading import import_string

    found: Optional[Any] = import_string(path.replace(":", "."))
    if not isinstance(found, App):
        raise TypeError(f"{path} is no tickr.App")
    return found

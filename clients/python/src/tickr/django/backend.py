"""The backend for tasks: a task is a job of one kind, whose payload names the function and its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Dict, List, Optional

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from .. import _json
from ..client import Client, Job
from ..errors import ApiError
from ..options import JobOptions, checked
from ..outbox import DEFAULT_TABLE
from ._tasks import (
    BaseTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from .outbox import enqueue_in_transaction, shared_client

DEFAULT_KIND = "django.task"
STATUSES = {
    "waiting": TaskResultStatus("READY"),
    "retrying": TaskResultStatus("READY"),
    "executing": TaskResultStatus("RUNNING"),
    "completed": TaskResultStatus("SUCCESSFUL"),
    "failed": TaskResultStatus("FAILED"),
    "cancelled": TaskResultStatus("FAILED"),
}
STOPS = {
    "timed_out": "tickr.errors.DeadlineExceeded",
    "cancelled": "tickr.errors.Cancelled",
    "lost": "tickr.errors.Lost",
    "expired": "tickr.errors.Failed",
}
"""Exceptions of attempts that ended without one of the task."""
MAX_TRACEBACKS = 5
"""Most attempts whose logs are read for one result, the newest first."""
OPTIONS = frozenset(
    (
        "url",
        "token",
        "worker_token",
        "kind",
        "queue_prefix",
        "outbox",
        "outbox_table",
        "nudge",
        "timeout",
        "max_attempts",
        "timeout_ms",
        "retry",
        "tags",
    )
)


def job_priority(priority: int) -> int:
    """Return the priority of a job, 0 (first) to 9, for that of a task, 100 (first) to -100. 0 is 5."""
    if priority > 0:
        return 5 + (-priority // 20)
    return 5 + (-priority + 24) // 25


class TickrBackend(BaseTaskBackend):
    """Enqueues tasks as jobs of tickr. The options, all of which may be left out:

    - `url`, `token`: as for `tickr.Client`. The API key needs the scope `enqueue`, which also reads results
    - `worker_token`: API key of `manage.py tickr_worker`, with the scope `work`. Default: that of `token`
    - `kind`: the kind of the jobs, default `django.task`. `manage.py tickr_worker --declare` declares it
    - `queue_prefix`: the queue of a job is this and the queue of the task, default `django.`
    - `outbox`: alias of a MySQL database with the table of the outbox. A task is then enqueued in its transaction
    - `outbox_table`: name of that table, default `tickr_outbox`
    - `nudge`: call tickr after a COMMIT, so that the task starts at once, default True
    - `timeout`: longest time of a call of the API, in seconds, default 10
    - `max_attempts`, `timeout_ms`, `retry`, `tags`: options of each job
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Dict[str, Any]):
        super().__init__(alias, params)
        unknown = set(self.options) - OPTIONS
        if unknown:
            raise ImproperlyConfigured(f"TASKS[{alias!r}] has unknown options: {', '.join(sorted(unknown))}")
        self.kind: str = self.options.get("kind", DEFAULT_KIND)
        self.queue_prefix: str = self.options.get("queue_prefix", "django.")
        self.outbox: Optional[str] = self.options.get("outbox")
        self.job_options: JobOptions = {}
        for name in ("max_attempts", "timeout_ms", "retry", "tags"):
            if name in self.options:
                self.job_options[name] = self.options[name]

    @property
    def client(self) -> Client:
        """The client of this backend."""
        url, timeout = self.options.get("url"), float(self.options.get("timeout", 10.0))
        return shared_client(tuple(url) if isinstance(url, list) else url, self.options.get("token"), timeout)

    def queue_of(self, queue_name: str) -> str:
        """Return the queue of tickr for a queue of Django."""
        return self.queue_prefix + queue_name

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Enqueue a task. With the outbox, it exists exactly if the transaction of Django is committed."""
        self.validate_task(task)
        payload = {
            "task": task.module_path,
            "args": normalize_json(list(args)),
            "kwargs": normalize_json(dict(kwargs)),
            "backend": self.alias,
            "priority": task.priority,
            "run_after": None if task.run_after is None else _json.rfc3339(aware(task.run_after)),
        }
        options: JobOptions = {
            **self.job_options,
            "queue": self.queue_of(task.queue_name),
            "priority": job_priority(task.priority),
        }
        if task.run_after is not None:
            options["execute_at"] = aware(task.run_after)
        enqueued_at = timezone.now()
        if self.outbox is not None:
            nudge = self.client if self.options.get("nudge", True) and task.run_after is None else None
            table = self.options.get("outbox_table", DEFAULT_TABLE)
            id = enqueue_in_transaction(self.kind, payload, using=self.outbox, table=table, nudge=nudge, **options)
        else:
            enqueued = self.client.enqueue(self.kind, payload, **options)
            id = enqueued.id
            if enqueued.created_at is not None:
                enqueued_at = in_django(enqueued.created_at)
        result: TaskResult[Any] = TaskResult(
            task=task,
            id=id,
            status=STATUSES["waiting"],
            enqueued_at=enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Return the result of a task. Raises TaskResultDoesNotExist if there is none, or not any more."""
        try:
            job = self.client.get(result_id)
        except ApiError as error:
            if error.code in ("not_found", "invalid_id"):
                raise TaskResultDoesNotExist(result_id) from error
            raise
        if job.kind != self.kind:
            raise TaskResultDoesNotExist(result_id)
        return self.result_of(job)

    def result_of(self, job: Job) -> TaskResult[Any]:
        """Make the result of a task from its job.

        A job tells the last 1,000 of thousands of attempts. Then `started_at` is the start of the first one of these.
        """
        payload = job.payload
        try:
            task = task_of(payload, self.alias, (job.queue or "")[len(self.queue_prefix) :])
        except ImportError as error:
            raise TaskResultDoesNotExist(job.id) from error
        begun = [it for it in job.attempts if it.get("started_at") and it.get("verdict") != "expired"]
        result: TaskResult[Any] = TaskResult(
            task=task,
            id=job.id,
            status=STATUSES[job.state],
            enqueued_at=moment(job.data.get("created_at")),
            started_at=moment(begun[0]["started_at"]) if begun else None,
            finished_at=moment(job.data.get("finished_at")) if job.ended else None,
            last_attempted_at=moment(begun[-1]["started_at"]) if begun else None,
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=self.alias,
            errors=self._errors(job),
            worker_ids=[str(it["runner"]) for it in begun],
        )
        if job.state == "completed":
            object.__setattr__(result, "_return_value", job.result)
        return result

    def _errors(self, job: Job) -> List[TaskError]:
        failed = [it for it in job.attempts if it.get("verdict") in ("failed", "rejected", *STOPS)]
        with_log = {int(it["number"]) for it in failed[-MAX_TRACEBACKS:] if it.get("log_bytes")}
        errors = []
        for attempt in failed:
            text, number = attempt.get("error") or "", int(attempt["number"])
            log = self.client.log_of(job.id, number) if number in with_log else None
            path = exception_of(attempt["verdict"], text)
            errors.append(TaskError(exception_class_path=path, traceback=(log or text).rstrip("\n") + "\n"))
        return errors

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings of this backend."""
        yield from super().check(**kwargs)
        if self.outbox is not None:
            if self.outbox not in connections:
                yield checks.Error(f"TASKS[{self.alias!r}]: there is no database {self.outbox!r}", id="tickr.E001")
            elif connections[self.outbox].vendor != "mysql":
                yield checks.Error(
                    f"TASKS[{self.alias!r}]: the outbox needs MySQL or MariaDB, and the database {self.outbox!r} is "
                    f"{connections[self.outbox].vendor}",
                    id="tickr.E002",
                )
        for queue in self.queues:
            if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", self.queue_of(queue)):
                yield checks.Error(
                    f"TASKS[{self.alias!r}]: {self.queue_of(queue)!r} is no name of a queue of tickr", id="tickr.E003"
                )
        try:
            checked(self.job_options)
        except (TypeError, ValueError) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="tickr.E004")


def task_of(payload: Dict[str, Any], alias: str, queue_name: str) -> Task[Any, Any]:
    """Return the task that a payload names. Raises ImportError if there is none."""
    path = str(payload["task"])
    task = import_string(path)
    # Only tasks are called, whatever function a payload may name.
    if not isinstance(task, Task):
        raise ImportError(f"{path} is no task")
    run_after = payload.get("run_after")
    changes: Dict[str, Any] = {"priority": payload.get("priority", 0), "backend": alias}
    if queue_name:
        changes["queue_name"] = queue_name
    if run_after:
        changes["run_after"] = moment(run_after)
    return task.using(**changes)


def aware(when: datetime) -> datetime:
    """Return a time with a time zone: with USE_TZ = False, Django has times without one."""
    return timezone.make_aware(when) if timezone.is_naive(when) else when


def moment(text: Optional[str]) -> Optional[datetime]:
    """Read a time of the API, as Django has it."""
    return in_django(_json.parse_time(text)) if text else None


def in_django(when: datetime) -> datetime:
    """Return a time as Django has it: without a time zone if USE_TZ is False."""
    return when if settings.USE_TZ else timezone.make_naive(when)


def exception_of(verdict: str, error: str) -> str:
    """Return the path of the exception that an attempt ended with. A worker writes it in front of the message."""
    if verdict in STOPS:
        return STOPS[verdict]
    name = error.partition(":")[0].strip()
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        path = name if "." in name else f"builtins.{name}"
        try:
            if issubclass(import_string(path), BaseException):
                return path
        except (ImportError, TypeError):
            pass
    return "tickr.errors.Rejected" if verdict == "rejected" else "tickr.errors.Failed"

"""Enqueue and execute jobs of tickr, the durable job runner for teams on MySQL.

- `Client`, `AsyncClient`: enqueue jobs, read them, cancel them, wait for them
- `App`: the kinds of a program, with their handlers
- `Worker`, `AsyncWorker`: execute the jobs of an App
- `tickr.outbox`: enqueue in a transaction of your own
- `tickr.testing`: test handlers, and code that enqueues, without a server
- `tickr.django`: the backend for `django.tasks`, and jobs in `django.db.transaction`
"""

from .aio import AsyncClient
from .client import Client, Enqueued, Job, JobResult, NewJob
from .context import Context
from .errors import (
    ApiError,
    AttemptStopped,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Failed,
    JobFailed,
    Lost,
    PayloadError,
    Rejected,
    Released,
    Snoozed,
    Stopping,
    TickrError,
    Verdict,
    WaitTimeout,
)
from .kinds import App, Kind
from .options import JobOptions, Retry
from .worker import AsyncWorker, Worker

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "App",
    "AsyncClient",
    "AsyncWorker",
    "AttemptStopped",
    "Cancelled",
    "Client",
    "ConnectionFailed",
    "Context",
    "DeadlineExceeded",
    "Enqueued",
    "Failed",
    "Job",
    "JobFailed",
    "JobOptions",
    "JobResult",
    "Kind",
    "Lost",
    "NewJob",
    "PayloadError",
    "Rejected",
    "Released",
    "Retry",
    "Snoozed",
    "Stopping",
    "TickrError",
    "Verdict",
    "WaitTimeout",
    "Worker",
]

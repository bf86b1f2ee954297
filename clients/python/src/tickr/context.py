"""The context of an attempt, as a handler sees it."""

from __future__ import annotations

import contextvars
import logging
import math
import threading
import time
from collections import deque
from datetime import datetime
from typing import Any, Callable, Deque, List, Mapping, Optional, Sequence, Tuple, Type

from . import _json
from .client import Client, Enqueued, KindName, NewJob, _name
from .errors import AttemptStopped, Cancelled, DeadlineExceeded, Lost, PayloadError, Stopping
from .options import FOLLOW_UP_NAMES, checked

MAX_LOG_BYTES = 16 * 1024
MAX_NOTE = 120
MAX_CHECKPOINT_BYTES = 64 * 1024
MAX_CHECKPOINT_LEVELS = 64
MAX_FOLLOW_UPS = 1_000

current: contextvars.ContextVar[Optional[Context]] = contextvars.ContextVar("tickr_context", default=None)
"""The context of the attempt that runs here."""


def printable(text: str, keep: str = "") -> str:
    """Replace what JSON or a terminal cannot show: lone surrogates and control characters but those of `keep`."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep or ord(c) > 0x9F else " " for c in text)


class AttemptLog:
    """The newest lines of an attempt, at most 16 KiB in UTF-8."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: Deque[bytes] = deque()
        self._bytes = 0

    def add(self, text: str) -> None:
        """Add the lines of a text, and forget the oldest ones that have no room any more."""
        for line in text.splitlines() or [""]:
            data = printable(line, "\t").encode("utf-8")
            if len(data) >= MAX_LOG_BYTES:
                # The start says what the line is about. It is cut between two characters.
                data = data[: MAX_LOG_BYTES - 1].decode("utf-8", "ignore").encode("utf-8")
            with self._lock:
                self._lines.append(data)
                self._bytes += len(data) + 1
                while self._bytes > MAX_LOG_BYTES:
                    self._bytes -= len(self._lines.popleft()) + 1

    def text(self) -> str:
        """Return the lines."""
        with self._lock:
            return b"\n".join(self._lines).decode("utf-8")


class Context:
    """One attempt of a job. Handlers get it as their second argument. All methods may be called from any thread."""

    def __init__(self, job: Mapping[str, Any], client: Optional[Client] = None, server: Sequence[str] = ()):
        self._job = job
        self._client = client
        # The addresses of the worker. Without a worker there are none.
        self._server = server
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stop: Optional[Type[AttemptStopped]] = None
        self._log = AttemptLog()
        self._percent: Optional[float] = None
        self._note: Optional[str] = None
        self._checkpoint: Optional[bytes] = None
        self._follow_ups: List[bytes] = []
        self._progress_version = 0
        self._checkpoint_version = 0
        self._changed: Callable[[], None] = lambda: None
        self._leaving = threading.Event()

    def __repr__(self) -> str:
        return f"<tickr.Context {self.kind} {self.job_id} attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        """Id of the job, the same in each of its attempts."""
        return str(self._job["id"])

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return str(self._job["kind"])

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return str(self._job["queue"])

    @property
    def attempt(self) -> int:
        """Attempts used, this one included."""
        return int(self._job["attempt"])

    @property
    def max_attempts(self) -> int:
        """Attempts before the job fails."""
        return int(self._job["max_attempts"])

    @property
    def tags(self) -> List[str]:
        """Tags of the job."""
        return list(self._job.get("tags") or ())

    @property
    def traceparent(self) -> Optional[str]:
        """W3C trace of the request that enqueued the job."""
        return self._job.get("traceparent")

    @property
    def started_at(self) -> datetime:
        """Start of the attempt, by the clock of the database."""
        return _json.parse_time(self._job["started_at"])

    @property
    def deadline_at(self) -> datetime:
        """End of the time limit, by the clock of the database. `remaining` does not depend on this clock."""
        return _json.parse_time(self._job["deadline_at"])

    @property
    def timeout_ms(self) -> int:
        """Time limit of the attempt, in milliseconds."""
        return int(self._job["timeout_ms"])

    def remaining(self) -> float:
        """Return the seconds until the time limit, at least 0."""
        return max(0.0, self._begun + self.timeout_ms / 1000 - time.monotonic())

    @property
    def checkpoint(self) -> Any:
        """The checkpoint with which this attempt began. None if no earlier attempt saved one."""
        return self._job.get("checkpoint")

    @property
    def client(self) -> Client:
        """The client of the worker. A job that it enqueues stays when this attempt fails."""
        if self._client is None:
            raise RuntimeError("this context has no client: pass one to FakeContext")
        return self._client

    def enqueue(self, kind: KindName, payload: Any = None, **options: Any) -> Enqueued:
        """Enqueue a job that continues the trace of this one.

        The next attempt enqueues it again, unless it has a `unique_key`, or an `idempotency_key` made of `job_id`.
        """
        options.setdefault("traceparent", self.traceparent)
        return self.client.enqueue(kind, payload, **options)

    def then(self, kind: KindName, payload: Any = None, **options: Any) -> None:
        """Enqueue a job with the success of this attempt: both are stored, or neither is. It continues the trace.

        An attempt that does not succeed enqueues none of its jobs, so its next attempt repeats none. Options: `queue`,
        `execute_at` or `delay_ms`, `expires_in_ms`, `priority`, `max_attempts`, `timeout_ms`, `retry`, `order_key`,
        `on_failure`, `limit_key`, `tags`, and `in_batch`: True adds it to the batch of this job. The client of the
        worker needs an API key with the scope `enqueue`, which is sent to the addresses of the worker. Raises TypeError
        for another option, PayloadError if the payload has no JSON, and ValueError after 1,000 jobs, or if the client
        does not have these addresses.
        """
        if self._server and not set(self._server) <= set(self.client._transport.urls):
            known, server = ", ".join(self.client._transport.urls), ", ".join(self._server)
            raise ValueError(
                f"jobs that follow are enqueued by the server of the worker ({server}), but its client has other "
                f"addresses ({known}): give the worker a client with its own, or use context.enqueue"
            )
        job = NewJob(_name(kind), {} if payload is None else payload, checked(options, FOLLOW_UP_NAMES)).body()
        with self._lock:
            if len(self._follow_ups) >= MAX_FOLLOW_UPS:
                raise ValueError(f"at most {MAX_FOLLOW_UPS} jobs follow one: let one of them enqueue the rest")
            self._follow_ups.append(job)

    # Stopping

    @property
    def should_stop(self) -> bool:
        """True once the attempt was cancelled, is over its time, is lost, or the grace of the worker is over."""
        return self._stopped.is_set()

    @property
    def cancelled(self) -> bool:
        """True once the job was cancelled or the attempt is over its time."""
        return self._stop is not None and issubclass(self._stop, Cancelled)

    @property
    def lost(self) -> bool:
        """True once the worker does not hold the attempt any more, or heard nothing for most of its lease."""
        return self._stop is Lost

    @property
    def worker_is_leaving(self) -> bool:
        """True once the worker was told to stop. The attempt may go on until the grace is over."""
        return self._leaving.is_set()

    def stop_reason(self) -> Optional[AttemptStopped]:
        """Return the stop that `check` would raise. None while the attempt may go on."""
        if self._stop is None:
            return None
        texts = {
            DeadlineExceeded: f"timed out after {self.timeout_ms} ms",
            Cancelled: "stopped: the job was cancelled, or its time is over",
            Lost: "the worker does not hold the attempt any more, or hears nothing from tickr",
            Stopping: "the worker stops",
        }
        return self._stop(texts[self._stop])

    def check(self) -> None:
        """Raise the stop of the attempt, if there is one: Cancelled, DeadlineExceeded, Lost or Stopping."""
        reason = self.stop_reason()
        if reason is not None:
            raise reason

    def sleep(self, seconds: float) -> None:
        """Sleep, and raise the stop of the attempt as soon as there is one. In coroutines use asyncio.sleep."""
        if self._stopped.wait(max(0.0, seconds)):
            self.check()

    def _deliver(self, stop: Type[AttemptStopped]) -> bool:
        """Stop the attempt. The first reason counts, except that a lost attempt stays lost. True if it is new."""
        with self._lock:
            if self._stop is Lost or (self._stop is not None and stop is not Lost):
                return False
            self._stop = stop
        self._stopped.set()
        return True

    # Reports

    def progress(self, percent: float, note: Optional[str] = None) -> None:
        """Report the progress in percent, 0 to 100, with a note of at most 120 characters. The next beat carries it."""
        percent = float(percent)
        if math.isnan(percent):
            raise ValueError("percent must be a number")
        with self._lock:
            self._percent = min(100.0, max(0.0, percent))
            if note is not None:
                self._note = printable(note)[:MAX_NOTE]
            self._progress_version += 1
        self._changed()

    def save_checkpoint(self, value: Any) -> None:
        """Save JSON of at most 64 KiB with which the next attempt begins, if this one does not succeed.

        The worker sends it with its next beat, and before the verdict of this attempt. None is a checkpoint as well: it
        replaces an earlier one. Raises PayloadError if the value has no JSON, is too large, or has more than 64 levels.
        """
        text = _json.encode(value)
        if len(text) > MAX_CHECKPOINT_BYTES:
            raise PayloadError(f"a checkpoint has at most {MAX_CHECKPOINT_BYTES} bytes, this one has {len(text)}")
        levels = _json.levels(text)
        if levels > MAX_CHECKPOINT_LEVELS:
            raise PayloadError(f"a checkpoint has at most {MAX_CHECKPOINT_LEVELS} levels, this one has {levels}")
        with self._lock:
            self._checkpoint = text
            self._checkpoint_version += 1
        self._changed()

    def log(self, message: object, *args: object) -> None:
        """Write a line to the log of the attempt, with %-arguments as in `logging`. The newest 16 KiB are kept."""
        text = str(message)
        self._log.add(text % args if args else text)

    def _reports(self) -> Tuple[int, Optional[float], Optional[str], int, Optional[bytes]]:
        with self._lock:
            progress = (self._progress_version, self._percent, self._note)
            return (*progress, self._checkpoint_version, self._checkpoint)


class AttemptLogHandler(logging.Handler):
    """Writes the records of `logging` to the log of the attempt in which they were made."""

    def emit(self, record: logging.LogRecord) -> None:
        context = current.get()
        if context is None or record.name.startswith("tickr."):
            return
        try:
            context.log(self.format(record))
        except Exception:
            self.handleError(record)

"""Test doubles: run a handler alone, and record what code enqueues. No server is needed."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Optional, Sequence, Type

from . import _json
from ._engine import Attempt, End, failure, payload_of, success
from ._ids import uuid7
from .aio import AsyncClient
from .client import Client, Enqueued, Job, JobResult, KindName, NewJob, _name
from .context import Context, current
from .errors import ApiError, AttemptStopped, Cancelled
from .kinds import Kind


class FakeClient(Client):
    """A client that records jobs instead of sending them. It keeps no unique keys and starts no jobs."""

    def __init__(self) -> None:
        super().__init__("http://fake.invalid", None)
        self.enqueued: List[NewJob] = []
        self._ids: List[str] = []
        self._by_key: Dict[str, Enqueued] = {}

    def enqueue(
        self,
        kind: KindName,
        payload: Any = None,
        *,
        idempotency_key: Optional[str] = None,
        traceparent: Optional[str] = None,
        **options: Any,
    ) -> Enqueued:
        """Record a job. Options and payload are checked as far as the client checks them."""
        if idempotency_key is not None and idempotency_key in self._by_key:
            seen = self._by_key[idempotency_key]
            return Enqueued(seen.id, seen.existing, True)
        enqueued = self._record(self.job(kind, payload, **options))
        if idempotency_key is not None:
            self._by_key[idempotency_key] = enqueued
        return enqueued

    def enqueue_many(
        self, jobs: Sequence[NewJob], *, idempotency_key: Optional[str] = None, traceparent: Optional[str] = None
    ) -> List[Enqueued]:
        """Record jobs."""
        return [self._record(job) for job in jobs]

    def _record(self, job: NewJob) -> Enqueued:
        payload = _json.decode(_json.encode(job.payload), self._exact)
        self.enqueued.append(NewJob(job.kind, payload, job.options))
        self._ids.append(str(uuid7()))
        return Enqueued(self._ids[-1])

    def get(self, id: str) -> Job:
        """Return a recorded job. It waits for ever."""
        if id not in self._ids:
            raise ApiError(404, "not_found", "Not found", f"no job has the id {id}")
        job = self.enqueued[self._ids.index(id)]
        return Job({"id": id, "state": "waiting", "kind": job.kind, "payload": job.payload, **job.options})

    def cancel(self, id: str, *, unless_executing: bool = False) -> Job:
        """Return a recorded job as cancelled."""
        return Job({**self.get(id).data, "state": "cancelled"})

    def wait(self, id: str, timeout: float = 60.0) -> JobResult:
        """Fail: no job of this client ends."""
        raise AssertionError("a FakeClient starts no jobs, so there is nothing to wait for")

    def nudge(self) -> None:
        """Do nothing."""

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Fail: this client calls no server."""
        raise AssertionError(f"a FakeClient calls no server: {method} {path}")

    # Assertions

    def jobs_of(self, kind: KindName) -> List[NewJob]:
        """Return the recorded jobs of a kind."""
        return [job for job in self.enqueued if job.kind == _name(kind)]

    def assert_enqueued(
        self, kind: KindName, payload: Any = ..., *, times: Optional[int] = None, **options: Any
    ) -> None:
        """Assert that a job of this kind was enqueued, with this payload and these options as far as they are given.

        With `times`, exactly as many of them.
        """
        wanted = self.job(kind, **options).options
        as_json = payload if payload is ... else _json.decode(_json.encode(payload))
        found = [
            job
            for job in self.jobs_of(kind)
            if (as_json is ... or job.payload == as_json)
            and all(job.options.get(name) == value for name, value in wanted.items())
        ]
        if not found if times is None else len(found) != times:
            seen = "\n".join(f"  {job.kind} {job.payload!r} {job.options!r}" for job in self.enqueued) or "  nothing"
            many = "" if times is None else f" {times} times, but {len(found)} times"
            raise AssertionError(f"{_name(kind)} was not enqueued like this{many}; these jobs were:\n{seen}")

    def assert_nothing_enqueued(self) -> None:
        """Assert that no job was enqueued."""
        if self.enqueued:
            raise AssertionError(f"{len(self.enqueued)} jobs were enqueued, the first one is {self.enqueued[0]}")


class FakeAsyncClient(AsyncClient):
    """An `AsyncClient` over a `FakeClient`, which is its `sync`."""

    sync: FakeClient

    def __init__(self) -> None:
        super().__init__(client=FakeClient(), threads=1)

    def assert_enqueued(self, kind: KindName, payload: Any = ..., **expected: Any) -> None:
        """Assert as `FakeClient.assert_enqueued` does."""
        self.sync.assert_enqueued(kind, payload, **expected)


class FakeContext(Context):
    """A context without a worker. Its client is a `FakeClient`, unless one is given."""

    def __init__(
        self,
        kind: str = "test",
        *,
        attempt: int = 1,
        max_attempts: int = 5,
        timeout_ms: int = 300_000,
        queue: str = "default",
        checkpoint: Any = None,
        tags: Sequence[str] = (),
        traceparent: Optional[str] = None,
        client: Optional[Client] = None,
    ):
        now = datetime.now(timezone.utc)
        self.fake_client = client if client is not None else FakeClient()
        job = {
            "id": str(uuid7()),
            "kind": kind,
            "queue": queue,
            "attempt": attempt,
            "max_attempts": max_attempts,
            "token": "fake",
            "payload": None,
            "timeout_ms": timeout_ms,
            "checkpoint": checkpoint,
            "tags": list(tags),
            "traceparent": traceparent,
            "started_at": _json.rfc3339(now),
            "deadline_at": _json.rfc3339(now + timedelta(milliseconds=timeout_ms)),
        }
        super().__init__(job, self.fake_client)

    def stop(self, reason: Type[AttemptStopped] = Cancelled) -> None:
        """Stop the attempt, as a worker does: the next `check` or `sleep` raises the reason."""
        self._deliver(reason)

    @property
    def percent(self) -> Optional[float]:
        """The progress that was reported last."""
        return self._percent

    @property
    def note(self) -> Optional[str]:
        """The note that was reported last."""
        return self._note

    @property
    def saved_checkpoint(self) -> Any:
        """The checkpoint that was saved last. None if none was."""
        return None if self._checkpoint is None else _json.decode(self._checkpoint)

    @property
    def log_text(self) -> str:
        """The log of the attempt."""
        return self._log.text()


@dataclass
class Outcome:
    """How a handler ended: what a worker would send."""

    verdict: Optional[str]
    """`succeeded`, `failed`, `rejected`, `snoozed` or `released`. None for a lost attempt, of which nothing is sent."""
    result: Any = None
    error: Optional[str] = None
    delay_ms: Optional[int] = None
    context: FakeContext = field(default_factory=FakeContext, repr=False)
    follow_ups: List[Any] = field(default_factory=list)
    """The jobs that `context.then` added, if it succeeded: `kind`, `payload` and the options."""


def run(kind: Kind[Any], payload: Any = None, context: Optional[FakeContext] = None) -> Outcome:
    """Run the handler of a kind alone, and return what a worker would send.

    The payload is written as JSON and read again, as on its way through the server. Coroutines run in a loop of their
    own: call this from a test that is no coroutine, or `arun` from one that is.
    """
    if kind.is_async:
        return asyncio.run(arun(kind, payload, context))
    return _Run(kind, payload, context).function()


async def arun(kind: Kind[Any], payload: Any = None, context: Optional[FakeContext] = None) -> Outcome:
    """Do the same as `run` in a running loop."""
    return await _Run(kind, payload, context).coroutine()


class _Run:
    """Runs a handler through the code of the worker that makes verdicts."""

    def __init__(self, kind: Kind[Any], payload: Any, context: Optional[FakeContext]):
        self.kind = kind
        self.context = context if context is not None else FakeContext(kind.name)
        text = _json.encode({} if payload is None else payload)
        self.attempt = Attempt({**self.context._job, "payload": _json.decode(text)}, self.context)

    def function(self) -> Outcome:
        token = current.set(self.context)
        try:
            return self._outcome(success(self.attempt, self._call()))
        except BaseException as error:
            return self._raised(error)
        finally:
            current.reset(token)

    async def coroutine(self) -> Outcome:
        token = current.set(self.context)
        try:
            value = self._call()
            if inspect.isawaitable(value):
                value = await value
            return self._outcome(success(self.attempt, value))
        except BaseException as error:
            return self._raised(error)
        finally:
            current.reset(token)

    def _call(self) -> Any:
        payload = payload_of(self.kind, self.attempt)
        arguments = (payload, self.context) if self.kind.takes_context else (payload,)
        return self.kind.handler(*arguments)

    def _raised(self, error: BaseException) -> Outcome:
        if isinstance(error, KeyboardInterrupt):
            raise error
        return self._outcome(failure(self.attempt, error))

    def _outcome(self, end: Optional[End]) -> Outcome:
        if end is None:
            return Outcome(None, context=self.context)
        result = None if end.result is None else _json.decode(end.result)
        follow_ups = [_json.decode(job) for job in end.follow_ups]
        return Outcome(end.verdict, result, end.error, end.delay_ms, self.context, follow_ups)


__all__ = ["FakeAsyncClient", "FakeClient", "FakeContext", "Outcome", "arun", "run"]

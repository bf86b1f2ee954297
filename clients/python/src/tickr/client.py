"""The client: enqueue jobs, read them, cancel them, wait for them."""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote
from uuid import uuid4

from . import _json
from ._http import REPEATED_STATUSES, Answer, Pause, Transport, Urls, _Secret
from .errors import ApiError, ConnectionFailed, JobFailed, WaitTimeout
from .options import JobOptions, Retry, checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .kinds import Kind

log = logging.getLogger("tickr.client")

ENDED = frozenset(("completed", "failed", "cancelled"))
"""States of a job that has ended."""
MAX_BULK = 1000
"""Most jobs of one bulk request."""
NUDGE_TIMEOUT = 1.0
"""Seconds that a nudge may take."""


@dataclass(frozen=True)
class Enqueued:
    """A job that was enqueued, or that is there already."""

    id: str
    """Id of the job."""
    existing: bool = False
    """True if nothing was written, because another job has the unique key. The id is that of this job."""
    repeated: bool = False
    """True if an earlier request with the same idempotency key was carried out. This is its answer."""
    warnings: Tuple[str, ...] = ()
    """Reasons why the job would not run at present."""
    created_at: Optional[datetime] = None
    """When the job was accepted. None in bulk requests, and for a job of another producer."""


@dataclass(frozen=True)
class Job:
    """A job as the API shows it. `data` has every field."""

    data: Dict[str, Any] = field(repr=False)
    id: str = field(init=False)
    state: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.data["id"])
        object.__setattr__(self, "state", self.data["state"])

    @property
    def kind(self) -> Optional[str]:
        """The kind. None when the API key may not see it."""
        return self.data.get("kind")

    @property
    def queue(self) -> Optional[str]:
        """The queue. None when the API key may not see it."""
        return self.data.get("queue")

    @property
    def payload(self) -> Any:
        """The payload as JSON."""
        return self.data.get("payload")

    @property
    def result(self) -> Any:
        """The result of a completed job; None when there is none."""
        return self.data.get("result")

    @property
    def last_error(self) -> Optional[str]:
        """The error of the last attempt that did not succeed."""
        return self.data.get("last_error")

    @property
    def attempt(self) -> int:
        """The number of attempts used, the running one included."""
        return int(self.data.get("attempt", 0))

    @property
    def attempts(self) -> List[Dict[str, Any]]:
        """The attempts in order, the running one last; of thousands, the last 1,000 that have ended."""
        return self.data.get("attempts") or []

    @property
    def execute_at(self) -> Optional[datetime]:
        """Due time of the next attempt, or of the last one."""
        text = self.data.get("execute_at")
        return _json.parse_time(text) if text else None

    @property
    def ended(self) -> bool:
        """True if the job is completed, failed or cancelled."""
        return self.state in ENDED


@dataclass(frozen=True)
class JobResult:
    """The end of a job."""

    id: str
    state: str
    result: Any = None
    last_error: Optional[str] = None

    @property
    def succeeded(self) -> bool:
        """True if the job is completed."""
        return self.state == "completed"

    def value(self) -> Any:
        """Return the result. Raises JobFailed if the job failed or was cancelled."""
        if not self.succeeded:
            raise JobFailed(self.id, self.state, self.last_error)
        return self.result


@dataclass(frozen=True)
class NewJob:
    """A job of a bulk request. `Client.job` and `Kind.job` make it."""

    kind: str
    payload: Any
    options: Dict[str, Any]

    def body(self) -> bytes:
        """Return the job as JSON."""
        return _json.joined({"kind": self.kind, **self.options}, {"payload": _json.encode(self.payload)})


KindName = Union[str, "Kind[Any]"]


def _name(kind: KindName) -> str:
    return kind if isinstance(kind, str) else kind.name


def _has_id(answer: Any) -> bool:
    """Say whether an answer is what tickr says of a job."""
    return isinstance(answer, dict) and isinstance(answer.get("id"), str) and answer["id"] != ""


class _Calls:
    """What the calls of the two clients send and read. It does no input or output."""

    @staticmethod
    def job(kind: KindName, payload: Any = None, **options: Unpack[JobOptions]) -> NewJob:
        """Make a job for `enqueue_many` and `create_batch`."""
        return NewJob(_name(kind), {} if payload is None else payload, checked(options))


class Client(_Calls):
    """A client of the API of tickr. Threads may share it, and forked processes get connections of their own.

    `url` is one address or several, as a list or separated by commas; without it `TICKR_URL` counts. After a failure
    the next address is tried. `token` is an API key; without it `TICKR_TOKEN` counts. `timeout` is the longest time
    of a call with all its repetitions, in seconds. With `exact`, JSON numbers with a fraction are read as Decimal.

    Every call raises ApiError when the server refuses it, and ConnectionFailed when no address answers in time.
    """

    def __init__(
        self,
        url: Urls = None,
        token: Optional[str] = None,
        *,
        timeout: float = 30.0,
        exact: bool = False,
        tls: Optional[ssl.SSLContext] = None,
    ):
        self._transport = Transport(url, token, tls=tls)
        self._timeout = timeout
        self._exact = exact

    def __repr__(self) -> str:
        return f"<tickr.Client {', '.join(self._transport.urls)}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections. The client may still be used."""
        self._transport.close()

    @property
    def _right(self) -> Dict[str, _Secret]:
        """The header with which a worker shows that its successes may enqueue jobs."""
        secret = self._transport.secret
        return {} if secret is None else {"tickr-enqueue-authorization": secret}

    # Enqueue

    def enqueue(
        self,
        kind: KindName,
        payload: Any = None,
        *,
        idempotency_key: Optional[str] = None,
        traceparent: Optional[str] = None,
        **options: Unpack[JobOptions],
    ) -> Enqueued:
        """Enqueue a job. When this returns, the job is durable.

        The client makes an idempotency key, so that a call which is repeated after a lost answer enqueues one job. A
        key of your own does the same across calls. `traceparent` is the W3C trace that the job continues.
        """
        body = self.job(kind, payload, **options).body()
        headers = {"idempotency-key": idempotency_key or str(uuid4())}
        if traceparent is not None:
            headers["traceparent"] = traceparent
        answer = self._send("POST", "/v1/jobs", body, headers, reads=_has_id)
        job = self._read(answer)
        repeated = "idempotency-replayed" in answer.headers
        created_at = _json.parse_time(job["created_at"]) if "created_at" in job else None
        return Enqueued(job["id"], answer.status == 200, repeated, tuple(job.get("warnings", ())), created_at)

    def enqueue_many(
        self, jobs: Sequence[NewJob], *, idempotency_key: Optional[str] = None, traceparent: Optional[str] = None
    ) -> List[Enqueued]:
        """Enqueue up to 1,000 jobs, all or none. Returns their receipts in the same order."""
        jobs = list(jobs)
        if not jobs:
            return []
        if len(jobs) > MAX_BULK:
            raise ValueError(f"one bulk request has at most {MAX_BULK} jobs")
        body = b'{"jobs":[' + b",".join(job.body() for job in jobs) + b"]}"
        headers = {"idempotency-key": idempotency_key or str(uuid4())}
        if traceparent is not None:
            headers["traceparent"] = traceparent

        def names_all(answer: Any) -> bool:
            receipts = answer.get("jobs") if isinstance(answer, dict) else None
            return isinstance(receipts, list) and len(receipts) == len(jobs) and all(map(_has_id, receipts))

        answer = self._send("POST", "/v1/jobs/batch", body, headers, reads=names_all)
        receipts, repeated = self._read(answer), "idempotency-replayed" in answer.headers
        warnings = tuple(receipts.get("warnings", ()))
        return [Enqueued(it["id"], it.get("existing", False), repeated, warnings) for it in receipts["jobs"]]

    # Jobs

    def get(self, id: str) -> Job:
        """Return a job with its attempts. Raises ApiError with the code `not_found` if there is none."""
        return Job(self.request("GET", f"/v1/jobs/{quote(id, safe='')}"))

    def cancel(self, id: str, *, unless_executing: bool = False) -> Job:
        """Cancel a job. If it is executing, its handler is asked to stop, and the state says `executing`.

        With `unless_executing` a job that executes goes on. Raises ApiError with the code `wrong_state` if the job has
        ended, or executes and is left alone.
        """
        query = "?unless=executing" if unless_executing else ""
        return Job(self.request("POST", f"/v1/jobs/{quote(id, safe='')}/cancel{query}"))

    def wait(self, id: str, timeout: float = 60.0) -> JobResult:
        """Wait until a job has ended. `timeout` is in seconds. Raises WaitTimeout when it has not ended by then."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            wait = min(left, 30.0)
            path = f"/v1/jobs/{quote(id, safe='')}/result?wait={int(wait * 1000)}ms"
            answer = self._send("GET", path, timeout=self._timeout + wait, patience=wait + 10)
            seen = self._read(answer)
            if answer.status == 200:
                return JobResult(seen["id"], seen["state"], seen.get("result"), seen.get("last_error"))
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"job {id} is {seen['state']} after {timeout} s")

    def log_of(self, id: str, number: int) -> Optional[str]:
        """Return the log of an attempt, numbered from 1. None when it has none."""
        answer = self._send("GET", f"/v1/jobs/{quote(id, safe='')}/attempts/{number}/log", fine=(404,))
        return None if answer.status == 404 else answer.body.decode("utf-8", "replace")

    # Batches

    def create_batch(
        self,
        jobs: Sequence[NewJob] = (),
        *,
        name: Optional[str] = None,
        on_success: Optional[NewJob] = None,
        on_complete: Optional[NewJob] = None,
        on_failure: Optional[NewJob] = None,
        parent: Optional[str] = None,
        close: bool = False,
        idempotency_key: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Create a batch with its first jobs, all or nothing. Returns the batch with the ids of these jobs."""
        raw = {"jobs": b"[" + b",".join(job.body() for job in jobs) + b"]"}
        for field_name, job in (("on_success", on_success), ("on_complete", on_complete), ("on_failure", on_failure)):
            if job is not None:
                raw[field_name] = job.body()
        fields: Dict[str, Any] = {"close": close}
        if name is not None:
            fields["name"] = name
        if parent is not None:
            fields["parent"] = parent
        headers = {"idempotency-key": idempotency_key or str(uuid4())}
        return dict(self._read(self._send("POST", "/v1/batches", _json.joined(fields, raw), headers)))

    def close_batch(self, id: str) -> Dict[str, Any]:
        """Close a batch: it ends with its last job."""
        return dict(self.request("POST", f"/v1/batches/{quote(id, safe='')}/close"))

    def get_batch(self, id: str) -> Dict[str, Any]:
        """Return a batch with its state and counts."""
        return dict(self.request("GET", f"/v1/batches/{quote(id, safe='')}"))

    # Operators

    def declare_kind(
        self,
        name: str,
        *,
        schema: Optional[Mapping[str, Any]] = None,
        description: Optional[str] = None,
        queue: Optional[str] = None,
        max_attempts: Optional[int] = None,
        timeout_ms: Optional[int] = None,
        retry: Optional[Retry] = None,
    ) -> Dict[str, Any]:
        """Declare a kind that remote workers execute. Needs an admin key. It replaces an earlier declaration."""
        fields = {
            "schema": schema,
            "description": description,
            "queue": queue,
            "max_attempts": max_attempts,
            "timeout_ms": timeout_ms,
            "retry": retry,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return dict(self.request("PUT", f"/v1/kinds/{quote(name, safe='')}", body))

    def nudge(self) -> None:
        """Let the jobs of committed transactions start at once, and not about a tenth of a second later.

        It is tried once, for a second, so that it holds up no request while tickr is down. Nothing is lost without it.
        """
        answer = self._transport.call("POST", "/v1/outbox/nudge", timeout=NUDGE_TIMEOUT)
        if not 200 <= answer.status < 300:
            raise answer.error()

    # Any call

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send any call of the API, and return the JSON of its answer. A POST or PATCH gets an idempotency key."""
        headers = {"idempotency-key": str(uuid4())} if method in ("POST", "PATCH") else None
        return self._read(self._send(method, path, None if body is None else _json.encode(body), headers))

    def _read(self, answer: Answer) -> Any:
        if not answer.body:
            return None
        try:
            return _json.decode(answer.body, self._exact)
        except ValueError:
            raise ApiError(answer.status, "invalid_answer", "The answer is no JSON", "is a proxy in between?") from None

    def _is_read(self, answer: Answer, reads: Callable[[Any], bool]) -> bool:
        try:
            return reads(_json.decode(answer.body, self._exact))
        except ValueError:
            return False

    def _send(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
        *,
        timeout: Optional[float] = None,
        patience: float = 10.0,
        fine: Tuple[int, ...] = (),
        reads: Optional[Callable[[Any], bool]] = None,
    ) -> Answer:
        """Send a call, and repeat it until it is answered or `timeout` is over. `patience` is that of one try.

        `reads` says of the JSON of a success whether it comes from tickr. A proxy may answer with a success of its own,
        which is a failure of its address.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        # The other addresses are tried at once, and a pause follows when all of them have failed.
        turns = Pause(len(self._transport.urls), longest=2.0)
        while True:
            wait = max(0.05, min(deadline - time.monotonic(), patience))
            at_least = 0.0
            failure: Union[ApiError, ConnectionFailed]
            try:
                answer = self._transport.call(method, path, body, headers, timeout=wait, pause=turns)
            except ConnectionFailed as error:
                failure = error
            else:
                success = 200 <= answer.status < 300
                if (success or answer.status in fine) and (reads is None or self._is_read(answer, reads)):
                    return answer
                if success:
                    self._transport.failed(answer.place)
                    failure = ConnectionFailed("the answer does not come from tickr: is a proxy in between?")
                else:
                    failure = answer.error()
                    if answer.status not in REPEATED_STATUSES and failure.code != "idempotency_in_progress":
                        raise failure
                    at_least = answer.retry_after
            pause = turns.next(at_least)
            if time.monotonic() + pause >= deadline:
                raise failure
            log.debug("%s %s is repeated in %.1f s: %s", method, path.partition("?")[0], pause, failure)
            time.sleep(pause)


__all__ = ["Client", "Enqueued", "Job", "JobResult", "NewJob"]

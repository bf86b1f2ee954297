"""The engine of a worker: it fetches, beats, executes and settles. `worker.py` has the two faces of it.

Each of these has a thread of its own, so that a handler which blocks its thread holds up none of them. Code in C that
keeps the lock of the interpreter (the GIL) holds up all of them: such work belongs into a process of its own.

- fetch: one request for jobs at a time
- beat: renews the leases, and brings cancels and lost attempts
- finish: sends verdicts until they are answered
- control: time limits, the end of leases, and the stop of the worker

Synchronous handlers run in a pool of threads, coroutines as tasks of an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
import time
import traceback
from collections import OrderedDict, deque
from concurrent.futures import Future
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type
from urllib.parse import quote
from uuid import uuid4

from . import _json
from ._http import REPEATED_STATUSES, Abort, Answer, Pause, Transport, clock
from ._ids import uuid7
from .client import Client
from .context import Context, current, printable
from .errors import (
    AttemptStopped,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Failed,
    Lost,
    PayloadError,
    Rejected,
    Released,
    Snoozed,
    Stopping,
    Verdict,
    text_of,
)
from .kinds import App, Kind

log = logging.getLogger("tickr.worker")

MAX_ERROR = 2_000
"""Most characters of an error."""
MAX_RESULT_BYTES = 256 * 1024
MAX_BODY_BYTES = 200 * 1024
"""Size from which on a body is split: it stays below the usual `body_limit` of 256 KiB."""
MAX_VERDICTS = 500
MAX_FETCH = 500
MAX_HOLDING = 1_000
MAX_PAUSE = 5.0
"""Longest pause between two tries of a call, in seconds."""
UNSAVED_TIME = 1.0
"""Seconds for which a report waits that the server could not store, because the row is locked."""
SEEN = 20_000
"""Number of tokens that are remembered, so that none is executed twice."""
STOP_TIME = 1.0
"""Seconds that handlers have after the grace to end by themselves."""
LEASE_SHARE = 0.9
"""Share of the lease after which an attempt stops unless a beat was answered. The rest is the time to stop in."""
LOOK_TIME = 1.0
"""Seconds between two looks at the leases: the waits of Python do not count the time of a suspended machine."""
LEAVE_TIME = 10.0
"""Seconds in which the last verdicts and the leave must be answered."""


def error_text(error: BaseException) -> str:
    """Return the type, with its module, and the message of an exception: at most 2,000 characters."""
    return shortened(text_of(error))


def shortened(text: str) -> str:
    """Return a text that the server takes as an error."""
    return printable(text, "\n\t")[:MAX_ERROR].strip() or "no error was given"


def wrong_fields(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return what the server says about the fields of a verdict that it refuses."""
    return "; ".join(f"{wrong.get('field', '')} {wrong.get('detail', '')}".strip() for wrong in errors)


class End:
    """A verdict on its way to the server."""

    __slots__ = ("delay_ms", "error", "follow_ups", "log", "pause", "result", "token", "verdict")

    def __init__(
        self,
        token: str,
        verdict: str,
        *,
        result: Optional[bytes] = None,
        error: Optional[str] = None,
        delay_ms: Optional[int] = None,
        log: str = "",
        follow_ups: Sequence[bytes] = (),
    ):
        self.token = token
        self.verdict = verdict
        self.result = result
        # A class of the program that is a verdict may have anything as its error.
        self.error = None if error is None else text_of(error)
        self.delay_ms = delay_ms
        self.log = log
        self.follow_ups = follow_ups
        self.pause = 0.5

    def body(self) -> bytes:
        """Return the verdict as JSON."""
        fields: Dict[str, Any] = {"token": self.token, "verdict": self.verdict}
        if self.error is not None:
            fields["error"] = shortened(self.error)
        if self.delay_ms is not None:
            fields["delay_ms"] = self.delay_ms
        if self.log:
            fields["log"] = self.log
        raw = {} if self.result is None else {"result": self.result}
        if self.follow_ups:
            raw["follow_ups"] = b"[" + b",".join(self.follow_ups) + b"]"
        return _json.joined(fields, raw)

    @property
    def another_follows(self) -> bool:
        """True if another attempt may follow, which begins with the checkpoint of this one."""
        return self.verdict in ("failed", "snoozed", "released")


class Attempt:
    """An attempt that the worker holds, until its verdict is answered."""

    def __init__(self, job: Mapping[str, Any], context: Context):
        self.job = job
        self.token = str(job["token"])
        self.context = context
        self.deadline = time.monotonic() + context.timeout_ms / 1000
        self.ended = False
        self.end: Optional[End] = None
        self.task: Optional[asyncio.Task[None]] = None
        self.loop: Optional[asyncio.AbstractEventLoop] = None
        self.followers: List[Attempt] = []
        self.sent_progress = 0
        self.sent_checkpoint = 0
        # Until when its reports wait, because another session locked the row of the job.
        self.unsaved_until = 0.0
        # The time of `clock` from which its lease holds, at the earliest.
        self.renewed = 0.0
        # True once it was stopped because no beat renewed its lease.
        self.expired = False

    @property
    def has_news(self) -> bool:
        """True if its newest checkpoint was not answered yet."""
        return self.context._checkpoint_version > self.sent_checkpoint


def payload_of(kind: Kind[Any], attempt: Attempt) -> Any:
    """Return the payload for the handler. Raises Rejected if it does not fit."""
    try:
        return kind.read(attempt.job["payload"])
    except PayloadError as error:
        raise Rejected(f"the payload does not fit the kind {kind.name}: {error}") from error


def success(attempt: Attempt, value: Any) -> End:
    """Return the verdict of a handler that returned. Raises the verdict that it returned, or Failed."""
    if isinstance(value, Verdict):
        raise value
    if attempt.context.cancelled:
        # It did not notice that it was told to stop. The protocol wants an attempt that was cancelled to fail.
        attempt.context.check()
    try:
        result = _json.encode(value)
    except PayloadError as error:
        raise Failed(f"the result {error}") from error
    if len(result) > MAX_RESULT_BYTES:
        raise Failed(f"the result has {len(result)} bytes of JSON, and {MAX_RESULT_BYTES} is the most")
    follow_ups = tuple(attempt.context._follow_ups)
    return End(attempt.token, "succeeded", result=None if value is None else result, follow_ups=follow_ups)


def failure(attempt: Attempt, error: BaseException) -> Optional[End]:
    """Return the verdict of an attempt whose handler raised. None if the worker does not hold it any more."""
    try:
        return read_failure(attempt, error)
    except Exception as fault:
        # Without a verdict the slot of the attempt would never be free again.
        return End(attempt.token, "failed", error=f"the error of the handler cannot be read: {error_text(fault)}")


def read_failure(attempt: Attempt, error: BaseException) -> Optional[End]:
    """Do the same. Raises what a class of the program raises that is a verdict and lacks what one has."""
    token, context = attempt.token, attempt.context
    stop = context.stop_reason()
    if isinstance(error, asyncio.CancelledError) and stop is not None:
        error = stop
    if isinstance(error, Lost):
        # The server has not said that the attempt is lost, so it may still wait for a verdict.
        return End(token, "released") if attempt.expired else None
    if context.cancelled and isinstance(error, Verdict) and stop is not None:
        error = stop
    if isinstance(error, (Stopping, Released)):
        return End(token, "released")
    if isinstance(error, AttemptStopped):
        return End(token, "failed", error=str(error))
    if isinstance(error, Failed):
        return End(token, "failed", error=error.error, delay_ms=error.delay_ms)
    if isinstance(error, Rejected):
        return End(token, "rejected", error=error.error)
    if isinstance(error, Snoozed):
        return End(token, "snoozed", error=error.error, delay_ms=error.delay_ms)
    # The frames of this package say nothing about the fault.
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("tickr."):
        trace = trace.tb_next
    trace = trace or error.__traceback__
    log.warning("job %s of the kind %s failed", context.job_id, context.kind, exc_info=(type(error), error, trace))
    for line in traceback.format_exception(type(error), error, trace):
        context.log(line.rstrip("\n"))
    return End(token, "failed", error=error_text(error))


class Threads:
    """A pool of daemon threads that grows to the number of jobs that run at a time.

    Unlike those of concurrent.futures, its threads do not keep the interpreter from its end: a handler that blocks its
    thread beyond the grace must not keep the process.
    """

    def __init__(self, ended: Optional[Callable[[], None]] = None) -> None:
        self._work: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._lock = threading.Lock()
        self._ended = ended

    def run(self, call: Callable[[], None]) -> None:
        """Run a call in a thread that is idle, or in a new one."""
        self._work.put(call)
        if not self._idle.acquire(blocking=False):
            with self._lock:
                self._count += 1
                number = self._count
            threading.Thread(target=self._loop, name=f"tickr-handler-{number}", daemon=True).start()

    def _loop(self) -> None:
        while True:
            call = self._work.get()
            if call is None:
                break
            call()
            # Without this, the last attempt lives on in the frame while the thread is idle.
            del call
            self._idle.release()
        if self._ended is not None:
            self._ended()

    def close(self) -> None:
        """Let the threads end, each when it is idle."""
        for _ in range(self._count):
            self._work.put(None)


class Settings:
    """The settings of a worker. Times are in milliseconds."""

    def __init__(
        self,
        *,
        name: str,
        queues: Optional[Sequence[str]],
        slots: int,
        lease_ms: int,
        grace_ms: int,
        wait_ms: int,
        version: Optional[str],
        exact: bool,
    ):
        if not 1 <= slots <= 1_000:
            raise ValueError("slots must be 1 to 1,000")
        if not 0 <= wait_ms <= 60_000:
            raise ValueError("wait_ms must be 0 to 60,000")
        if not 10_000 <= lease_ms <= 3_600_000:
            raise ValueError("lease_ms must be 10,000 to 3,600,000")
        self.name = name
        self.queues = None if queues is None else list(queues)
        self.slots = slots
        self.lease_ms = lease_ms
        self.grace_ms = grace_ms
        self.wait_ms = wait_ms
        self.version = version
        self.exact = exact


class Engine:
    """Executes jobs until it is told to stop. `done` is set when the worker has left."""

    def __init__(
        self,
        app: App,
        transport: Transport,
        client: Client,
        settings: Settings,
        *,
        loop: Optional[asyncio.AbstractEventLoop] = None,
        around: Optional[Callable[[Callable[[], Any]], Any]] = None,
        thread_ended: Optional[Callable[[], None]] = None,
    ):
        if not len(app):
            raise ValueError("the App has no kinds")
        self.app = app
        self.transport = transport
        self.client = client
        self.settings = settings
        self.loop = loop
        self.around = around
        self.done: Future[None] = Future()
        self.worker_id: Optional[str] = None
        self.beat_ms = 0
        self.lease = settings.lease_ms / 1000
        # One lock for everything below it. Its waiters are told of every change.
        self._changed = threading.Condition()
        self._held: Dict[str, Attempt] = {}
        self._running: Dict[str, Attempt] = {}
        self._occupied = 0
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._ends: Deque[End] = deque()
        self._put_off: List[Tuple[float, End]] = []
        self._sending = 0
        self._stopping = False
        self._leaving = False
        self._closing = False
        self._stop_asked = False
        self._drained = False
        self._beat_now = False
        self._report_most = MAX_HOLDING
        # The time of `clock` at which the newest beat that was answered was sent.
        self._renewed = 0.0
        self._registering = threading.Lock()
        self._beating = threading.Lock()
        self._fetch_abort: Optional[Abort] = None
        self._finish_pause = Pause(len(transport.urls))
        self._finish_at_least = 0.0
        self._control: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._handlers = Threads(thread_ended)
        self._threads: List[threading.Thread] = []

    # Start and stop

    def start(self) -> None:
        """Register, and begin to fetch. A server that cannot answer is waited for. Raises ApiError if it refuses."""
        self._register(None, first=True)
        if self.worker_id is None:  # told to stop before
            self.done.set_result(None)
            return
        for name, target in (
            ("control", self._control_loop),
            ("beat", self._beat_loop),
            ("finish", self._finish_loop),
            ("fetch", self._fetch_loop),
        ):
            thread = threading.Thread(target=self._guarded, args=(name, target), name=f"tickr-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Tell the worker to stop."""
        self._stop_asked = True
        self._control.put("stop")

    def join(self, seconds: float) -> None:
        """Wait until the loops have ended, so that none of them uses a connection any more."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _guarded(self, name: str, target: Callable[[], None]) -> None:
        """Run a loop. A defect in it must not leave a worker that looks alive, so it ends the worker."""
        try:
            target()
        except BaseException as error:
            log.critical("the loop %s of the worker ended by a defect", name, exc_info=True)
            if not self.done.done():
                self.done.set_exception(error)

    def _register(self, known: Optional[str], *, first: bool = False) -> None:
        """Register, unless another thread has replaced the id `known` in between."""
        settings = self.settings
        with self._registering:
            if self.worker_id != known:
                return
            fields: Dict[str, Any] = {
                "name": settings.name[:64],
                "kinds": [kind.name for kind in self.app],
                "slots": settings.slots,
                "lease_ms": settings.lease_ms,
                "host": socket.gethostname()[:255],
                "pid": os.getpid(),
            }
            if settings.queues is not None:
                fields["queues"] = settings.queues
            if settings.version is not None:
                fields["version"] = settings.version[:64]
            body, key, pause = _json.encode(fields), {"idempotency-key": str(uuid4())}, Pause(len(self.transport.urls))
            # A process learns within two seconds that a kind was declared at another one. The server may come long
            # after this program, so the time runs from its first such answer.
            patience: Optional[float] = None
            while not self._closing and not (first and self._stop_asked):
                at_least = 0.0
                try:
                    answer = self.transport.call("POST", "/v1/workers", body, key, timeout=10.0, pause=pause)
                    if answer.status == 201:
                        found = _json.decode(answer.body)
                        self.beat_ms, lease_ms = int(found["beat_ms"]), int(found.get("lease_ms", settings.lease_ms))
                        self.worker_id, self.lease = str(found["id"]), lease_ms / 1000
                        log.info("registered as %s for %s", self.worker_id, ", ".join(fields["kinds"]))
                        return
                    failure: Exception = answer.error()
                    at_least = answer.retry_after
                    if patience is None and answer.status == 422:
                        patience = time.monotonic() + 3.0
                    undeclared = answer.status == 422 and patience is not None and time.monotonic() < patience
                    # 429 and every 5xx say that this address cannot now, not that the worker is wrong.
                    passing = answer.status in REPEATED_STATUSES or answer.status >= 500
                    if first and not passing and not undeclared:
                        raise failure
                except (ConnectionFailed, ValueError, KeyError, TypeError) as error:
                    failure = error
                log.warning("cannot register: %s", failure)
                self._sleep(min(pause.next(at_least), 1.0 if first else MAX_PAUSE))

    def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the worker lives."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _path(self, worker_id: Optional[str], call: str) -> str:
        return f"/v1/workers/{quote(worker_id or '', safe='')}/{call}"

    # Fetch

    def _fetch_loop(self) -> None:
        pause = Pause(len(self.transport.urls))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._room() > 0)
                if self._stopping:
                    return
                room = min(self._room(), MAX_FETCH)
                holding = list(self._held)
                abort = self._fetch_abort = Abort()
                known = self.worker_id
            fields = {
                "slots": room,
                "wait_ms": self.settings.wait_ms,
                "holding": holding,
                "fetch_id": str(uuid7()),
            }
            body = _json.encode(fields)
            first, again = clock(), False
            # The same body goes out until it is answered: the answer then has the same jobs, wherever it comes from.
            while not self._stopping:
                at_least = 0.0
                try:
                    path, timeout = self._path(known, "fetch"), self.settings.wait_ms / 1000 + 10
                    answer = self.transport.call("POST", path, body, timeout=timeout, abort=abort, pause=pause)
                    if answer.status == 200:
                        found = _json.decode(answer.body, self.settings.exact)
                        pause.reset()
                        self._take(found, first, answer.sent, again or answer.again)
                        break
                    if answer.status == 404:
                        self._register(known)
                        break
                    at_least = answer.retry_after
                    self._refused("fetch", answer)
                except (ConnectionFailed, ValueError, KeyError, TypeError) as error:
                    if not self._stopping:
                        log.warning("a request for jobs is repeated: %s", error)
                again = True
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, pause.next(at_least))

    def _refused(self, call: str, answer: Answer) -> None:
        """Log a refusal. Those that a repetition does not mend go to the error log, as the operator has to act."""
        if answer.status not in REPEATED_STATUSES:
            self.transport.failed(answer.place)
            log.error("the server refuses %s: %s", call, answer.error())
        else:
            log.warning("%s is repeated: %s", call, answer.error())

    def _room(self) -> int:
        return min(self.settings.slots - self._occupied, MAX_HOLDING - len(self._held))

    def _take(self, found: Mapping[str, Any], first: float, sent: float, again: bool) -> None:
        """Start the jobs of an answer, unless it was on its way for a quarter of the lease. Its request was sent first
        and last at these times of `clock`."""
        now, took = clock(), found.get("took_ms")
        # Without the time at the server, the request may have waited for longer than a lease. The beats went on.
        since = self._renewed
        if took is not None:
            # A repeated answer may have jobs that were claimed a quarter of the lease before.
            since = now - max(0.0, now - sent - took / 1000) - (self.lease / 4 if again else 0.0)
        if took is not None and now - sent - took / 1000 >= self.beat_ms / 1000 * 0.75:
            # The server may have given its jobs back. The next request lists none of them.
            if found["jobs"]:
                log.warning("an answer with %d jobs came late and counts as lost", len(found["jobs"]))
        else:
            for job in found["jobs"]:
                self._accept(job, max(first, since))
        drained = bool(found.get("drain"))
        with self._changed:
            if drained and not self._drained:
                log.info("drained by an operator")
            self._drained = drained
            if drained:
                self._changed.wait_for(lambda: self._stopping, self.beat_ms / 1000)

    def _accept(self, job: Mapping[str, Any], renewed: float) -> None:
        context = Context(job, self.client, self.transport.urls)
        attempt = Attempt(job, context)
        with self._changed:
            if attempt.token in self._seen:
                return
            attempt.renewed = renewed
            self._seen[attempt.token] = None
            while len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            self._held[attempt.token] = attempt
            self._occupied += 1
            context._changed = self._beat_soon
            if self._leaving:
                self._conclude(attempt, End(attempt.token, "released"))
                return
            if self._stopping:
                # It was on its way when the worker was told to stop, and has the grace like the others.
                context._leaving.set()
            before = self._running.get(context.job_id)
            if before is not None:
                # The handler of an earlier attempt of this job was told to stop and has not ended. Two of them at a
                # time must not be.
                before.followers.append(attempt)
                return
            self._running[context.job_id] = attempt
        self._control.put("changed")
        self._launch(attempt)

    # Handlers

    def _launch(self, attempt: Attempt) -> None:
        kind = self.app.get(attempt.context.kind)
        if kind is not None and kind.is_async:
            loop = self.loop
            if loop is None:
                raise RuntimeError("a coroutine handler needs an event loop")
            attempt.loop = loop
            try:
                asyncio.run_coroutine_threadsafe(self._run_coroutine(kind, attempt), loop)
            except RuntimeError:  # the loop of the program was closed
                self._ended(attempt, End(attempt.token, "released"))
        else:
            self._handlers.run(lambda: self._run_function(kind, attempt))

    def _run_function(self, kind: Optional[Kind[Any]], attempt: Attempt) -> None:
        context, token = attempt.context, current.set(attempt.context)
        try:
            # An attempt that was stopped while it waited for an earlier one does not begin.
            context.check()
            if kind is None:
                raise Failed(f"this worker has no handler of the kind {context.kind}")
            handler, payload = kind.handler, payload_of(kind, attempt)
            arguments = (payload, context) if kind.takes_context else (payload,)
            value = handler(*arguments) if self.around is None else self.around(lambda: handler(*arguments))
            end: Optional[End] = success(attempt, value)
        except BaseException as error:
            end = failure(attempt, error)
        finally:
            current.reset(token)
        self._ended(attempt, end)

    async def _run_coroutine(self, kind: Kind[Any], attempt: Attempt) -> None:
        context, token = attempt.context, current.set(attempt.context)
        try:
            with self._changed:
                attempt.task = asyncio.current_task()
            context.check()
            handler, payload = kind.handler, payload_of(kind, attempt)
            arguments = (payload, context) if kind.takes_context else (payload,)
            value = await handler(*arguments)
            end: Optional[End] = success(attempt, value)
        except BaseException as error:
            end = failure(attempt, error)
        finally:
            current.reset(token)
        with self._changed:
            attempt.task = None
        self._ended(attempt, end)

    def _ended(self, attempt: Attempt, end: Optional[End]) -> None:
        """Note that a handler has ended, and send its verdict."""
        with self._changed:
            if attempt.ended:
                return  # The worker has given it back, because its grace was over.
            following = attempt.followers.pop(0) if attempt.followers else None
            job = attempt.context.job_id
            if following is None:
                self._running.pop(job, None)
            else:
                following.followers = attempt.followers
                self._running[job] = following
            self._conclude(attempt, end)
        self._control.put("changed")
        if following is not None:
            self._launch(following)

    def _conclude(self, attempt: Attempt, end: Optional[End]) -> None:
        """Hand a verdict to the loop that sends it. The caller has the lock."""
        attempt.ended = True
        self._occupied -= 1
        if end is None or attempt.token not in self._held:
            log.info("job %s was lost: its verdict is not sent", attempt.context.job_id)
            self._held.pop(attempt.token, None)
        else:
            end.log = attempt.context._log.text()
            try:
                end.body()
            except Exception as error:
                # One verdict that cannot be written must not hold up the others.
                end = End(end.token, "failed", error=f"the verdict cannot be written: {error_text(error)}")
            attempt.end = end
            self._ends.append(end)
        self._changed.notify_all()

    def _deliver(self, attempt: Attempt, stop: Type[AttemptStopped]) -> None:
        """Tell a handler to stop."""
        if not attempt.context._deliver(stop):
            return
        log.info("job %s is stopped: %s", attempt.context.job_id, stop.__name__)
        with self._changed:
            task, loop = attempt.task, attempt.loop
        if task is not None and loop is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:  # the loop is closed
                pass

    # Beats

    def _beat_soon(self) -> None:
        with self._changed:
            self._beat_now = True
            self._changed.notify_all()

    def _beat_loop(self) -> None:
        last, pause = time.monotonic(), Pause(len(self.transport.urls))
        while True:
            with self._changed:
                # News of handlers go out early, but at most once a second.
                due = last + self.beat_ms / 1000
                while not self._closing and time.monotonic() < due:
                    if self._beat_now:
                        due = min(due, last + 1.0)
                    self._changed.wait(max(0.0, due - time.monotonic()))
                if self._closing:
                    return
            last = time.monotonic()
            if self._beat():
                pause.reset()
            else:
                self._sleep(min(pause.next(), 2.0))
                last = time.monotonic() - self.beat_ms / 1000

    def _beat(self) -> bool:
        """Send one beat. True if it was answered, or refused in a way that a repetition does not mend."""
        with self._beating:
            while True:
                with self._changed:
                    self._beat_now = False
                    known = self.worker_id
                    attempts = [self._held[token] for token in self._held]
                parts, sent, count, others_wait = self._reports(attempts)
                body = b'{"holding":[' + b",".join(parts) + b"]}"
                timeout = min(10.0, max(1.0, self.beat_ms / 1000))
                try:
                    answer = self.transport.call("POST", self._path(known, "beat"), body, timeout=timeout)
                except ConnectionFailed as error:
                    log.warning("a beat is repeated: %s", error)
                    return False
                if answer.status not in (400, 413, 422) or count < 2:
                    break
                # A proxy may take less than the server, or one of the reports is wrong. Fewer go in one beat.
                log.warning("a beat with %d reports is sent in parts: %s", count, answer.error())
                self._report_most = count // 2
            try:
                if answer.status in (400, 413, 422):
                    # What a handler reported is not taken. The lease is worth more than the report.
                    log.error("the server refuses a report of a handler: %s", answer.error())
                    parts = [_json.encode({"token": attempt.token}) for attempt in attempts]
                    body = b'{"holding":[' + b",".join(parts) + b"]}"
                    answer = self.transport.call("POST", self._path(known, "beat"), body, timeout=timeout)
                if answer.status == 404:
                    self._register(known)
                    return False
                if answer.status != 200:
                    self._refused("a beat", answer)
                    return False
                found = _json.decode(answer.body)
                cancel, lost, unsaved = list(found["cancel"]), list(found["lost"]), set(found.get("unsaved", ()))
                refused = [(str(it["token"]), f"{it['field']} {it['detail']}") for it in found.get("refused", ())]
            except (ConnectionFailed, ValueError, KeyError, TypeError) as error:
                log.warning("a beat is repeated: %s", error)
                return False
            with self._changed:
                self._renewed = max(self._renewed, answer.sent)
                for attempt in attempts:
                    attempt.renewed = max(attempt.renewed, answer.sent)
                self._note_refused(refused)
                for attempt, progress, checkpoint in sent:
                    # What the server could not store for a locked row goes with a later beat again.
                    if attempt.token in unsaved:
                        attempt.unsaved_until = time.monotonic() + UNSAVED_TIME
                        continue
                    attempt.unsaved_until = 0.0
                    attempt.sent_progress = max(attempt.sent_progress, progress)
                    attempt.sent_checkpoint = max(attempt.sent_checkpoint, checkpoint)
                if others_wait:
                    self._beat_now = True
                else:
                    self._report_most = MAX_HOLDING
        self._beaten(cancel, lost)
        return True

    def _note_refused(self, refused: Iterable[Tuple[str, str]]) -> None:
        """Log reports that the server left out, also to the logs of their attempts. The caller has the lock."""
        for token, detail in refused:
            attempt = self._held.get(token)
            if attempt is None:
                continue
            log.error("the server refuses a report of job %s: %s", attempt.context.job_id, detail)
            attempt.context.log(f"the server refuses a report: {detail}")
            if attempt.end is not None:
                attempt.end.log = attempt.context._log.text()

    def _reports(self, attempts: Sequence[Attempt]) -> Tuple[List[bytes], List[Tuple[Attempt, int, int]], int, bool]:
        """Return the entries of a beat, what they report, how many reports these are, and whether others must wait for
        the next beat. Reports that were not stored pause, and then come behind the others."""
        parts: List[bytes] = []
        sent: List[Tuple[Attempt, int, int]] = []
        size, count, others_wait = 0, 0, False
        now = time.monotonic()
        # Verdicts wait for the checkpoints of attempts that have ended, so these come before reports of running ones.
        for attempt in sorted(attempts, key=lambda it: (it.unsaved_until, it.end is None)):
            if now < attempt.unsaved_until:
                parts.append(_json.encode({"token": attempt.token}))
                continue
            progress, percent, note, checkpoint, content = attempt.context._reports()
            fields: Dict[str, Any] = {"token": attempt.token}
            raw: Dict[str, bytes] = {}
            has_progress = progress > attempt.sent_progress and attempt.end is None
            news = content if checkpoint > attempt.sent_checkpoint else None
            if news is not None and size and size + len(news) > MAX_BODY_BYTES // 2:
                checkpoint, news, others_wait = attempt.sent_checkpoint, None, True
            if (has_progress or news is not None) and count >= self._report_most:
                progress, checkpoint = attempt.sent_progress, attempt.sent_checkpoint
                has_progress, news, others_wait = False, None, True
            # A note alone would set the percent to 0, so both go out together.
            if has_progress:
                fields["percent"] = percent
                if note is not None:
                    fields["note"] = note
            if news is not None:
                raw["checkpoint"], size = news, size + len(news)
            if has_progress or news is not None:
                count += 1
                sent.append((attempt, progress, checkpoint))
            parts.append(_json.joined(fields, raw))
        return parts, sent, count, others_wait

    def _beaten(self, cancel: Sequence[str], lost: Sequence[str]) -> None:
        stops: List[Tuple[Attempt, Type[AttemptStopped]]] = []
        with self._changed:
            for token in cancel:
                attempt = self._held.get(token)
                if attempt is not None and not attempt.ended:
                    stops.append((attempt, Cancelled))
            for token in lost:
                attempt = self._held.get(token)
                # A verdict that is under way may be the reason why the server does not count the attempt any more. It
                # goes on its way until it is answered.
                if attempt is not None and not attempt.ended:
                    del self._held[token]
                    stops.append((attempt, Lost))
        for attempt, stop in stops:
            over = stop is Cancelled and time.monotonic() >= attempt.deadline
            self._deliver(attempt, DeadlineExceeded if over else stop)

    # Verdicts

    def _finish_loop(self) -> None:
        pause = self._finish_pause
        while True:
            with self._changed:
                while True:
                    until = self._until_put_off()
                    if self._closing or self._ends:
                        break
                    self._changed.wait(until)
                if self._closing and not self._ends:
                    return
                batch = self._next_batch()
                self._sending = len(batch)
            done = self._send(batch)
            with self._changed:
                self._sending = 0
                if not done:
                    put_off = [end for _, end in self._put_off]
                    self._ends.extendleft(end for end in reversed(batch) if end not in put_off)
                self._changed.notify_all()
            if done:
                pause.reset()
            elif self._closing:
                return
            else:
                self._sleep(pause.next(self._finish_at_least))

    def _until_put_off(self) -> Optional[float]:
        """Take back the verdicts whose pause is over. Return the seconds until the next one is, or nothing."""
        now = time.monotonic()
        self._ends.extend(end for at, end in self._put_off if at <= now)
        self._put_off = [(at, end) for at, end in self._put_off if at > now]
        if self._ends:
            return 0.0
        return min((at - now for at, _ in self._put_off), default=None)

    def _put_off_end(self, end: End, until: float = 0.0) -> None:
        """Send a verdict again later: another session locks the row of its job. The caller has the lock."""
        self._put_off.append((max(time.monotonic() + end.pause, until), end))
        end.pause = min(end.pause * 2, MAX_PAUSE)

    def _next_batch(self) -> List[End]:
        batch: List[End] = []
        size = 0
        while self._ends and len(batch) < MAX_VERDICTS:
            end = self._ends[0]
            size += len(end.result or b"") + len(end.log) * 2 + 4 * len(end.error or "") + 200
            size += sum(len(job) + 1 for job in end.follow_ups)
            if batch and size > MAX_BODY_BYTES:
                break
            batch.append(self._ends.popleft())
        return batch

    def _send(self, batch: List[End]) -> bool:
        """Send verdicts. True if each of them is answered, or cannot be sent at all."""
        self._finish_at_least = 0.0
        with self._changed:
            known = self.worker_id
            held = [self._held.get(end.token) for end in batch]
            waits = any(it is not None and end.another_follows and it.has_news for end, it in zip(batch, held))
        # The next attempt may start as soon as the verdict is written, so the checkpoint must be there before it.
        if waits:
            if not self._flush_checkpoints(batch):
                return False
            with self._changed:
                batch = [end for end in batch if not self._is_held_up(end)]
            if not batch:
                return True
        body = b'{"verdicts":[' + b",".join(end.body() for end in batch) + b"]}"
        try:
            path, pause = self._path(known, "finish"), self._finish_pause
            # The API key of the worker may enqueue nothing, so that of its client goes with follow-up jobs.
            right = self.client._right if any(end.follow_ups for end in batch) else None
            answer = self.transport.call("POST", path, body, right, timeout=15.0, pause=pause)
            if answer.status == 200:
                told = _json.decode(answer.body)["results"]
                results = {str(it["token"]): str(it["result"]) for it in told}
                errors = {str(it["token"]): it.get("errors", ()) for it in told}
                refused = [end for end in batch if results.get(end.token) == "refused"]
                locked = [end for end in batch if results.get(end.token) == "locked"]
                self._answered([end for end in batch if end not in refused and end not in locked], results)
                with self._changed:
                    for end in locked:
                        self._put_off_end(end)
                mended = [self._mend(end, "was refused: " + wrong_fields(errors[end.token])) for end in refused]
                return all(mended)
        except (ConnectionFailed, ValueError, KeyError, TypeError) as error:
            log.warning("%d verdicts are sent again: %s", len(batch), error)
            return False
        if answer.status in (400, 413, 422):
            if len(batch) > 1:
                # One of them is refused, and with it all. So each half is sent alone, until the one is found. The rest
                # is put back by the caller if a half gets no answer; what was settled is settled again, which is
                # harmless.
                middle = len(batch) // 2
                return self._send(batch[:middle]) and self._send(batch[middle:])
            problem = answer.error()
            reason = "is too large for a request" if problem.status == 413 else f"was refused: {problem}"
            return self._mend(batch[0], reason)
        if answer.status == 404:
            self._register(known)
        else:
            self._refused("verdicts", answer)
        self._finish_at_least = answer.retry_after
        return False

    def _flush_checkpoints(self, batch: List[End]) -> bool:
        """Send the checkpoints of these verdicts, as long as each beat brings one of them on. False if a beat got no
        answer."""
        before = len(batch) + 1
        while True:
            with self._changed:
                now = time.monotonic()
                held = [self._held.get(end.token) for end in batch if end.another_follows]
                left = sum(it is not None and it.has_news and now >= it.unsaved_until for it in held)
            if left == 0 or left >= before:
                return True
            before = left
            if not self._beat():
                return False

    def _is_held_up(self, end: End) -> bool:
        """Put a verdict off whose checkpoint is not stored yet. The caller has the lock."""
        attempt = self._held.get(end.token)
        if attempt is None or not (end.another_follows and attempt.has_news):
            return False
        self._put_off_end(end, attempt.unsaved_until)
        return True

    def _mend(self, end: End, reason: str) -> bool:
        """Replace a verdict that the server refuses by one that says so."""
        log.error("the server refuses a verdict, which %s", reason)
        if end.verdict == "failed" and not end.log and end.result is None and end.delay_ms is None:
            self._answered([end], {})
            return True
        is_result = end.result is not None and not end.follow_ups
        what = f"the result ({len(end.result or b'')} bytes)" if is_result else f"the verdict {end.verdict}"
        end.verdict, end.error, end.result, end.delay_ms, end.log = "failed", f"{what} {reason}", None, None, ""
        end.follow_ups = ()
        return self._send([end])

    def _answered(self, batch: List[End], results: Mapping[str, str]) -> None:
        with self._changed:
            for end in batch:
                result = results.get(end.token, "not answered")
                attempt = self._held.pop(end.token, None)
                if result != "settled":
                    job = attempt.context.job_id if attempt is not None else "?"
                    log.warning("the verdict %s of job %s changed nothing: %s", end.verdict, job, result)
            self._changed.notify_all()
        self._control.put("changed")

    # Time limits and the stop

    def _control_loop(self) -> None:
        grace_end: Optional[float] = None
        while True:
            now = time.monotonic()
            with self._changed:
                running = list(self._running.values())
                running += [follower for attempt in running for follower in attempt.followers]
            for attempt in running:
                if now >= attempt.deadline:
                    self._deliver(attempt, DeadlineExceeded)
            lease_end = self._stop_expired(running)
            if grace_end is not None and (not running or now >= grace_end):
                break
            moments = [attempt.deadline for attempt in running if not attempt.context.should_stop]
            if grace_end is not None:
                moments.append(grace_end)
            if lease_end is not None:
                moments.append(now + min(lease_end, LOOK_TIME))
            try:
                # An upper bound, because a lock cannot wait for years.
                timeout = min(3600.0, max(0.0, min(moments) - now)) if moments else None
                message = self._control.get(timeout=timeout)
            except queue.Empty:
                continue
            if message == "stop" and grace_end is None:
                grace_end = time.monotonic() + self.settings.grace_ms / 1000
                self._stop_fetching()
        self._leave()

    def _stop_expired(self, running: Iterable[Attempt]) -> Optional[float]:
        """Stop attempts whose leases are nearly over without an answered beat, because another worker may start their
        jobs. They stay held, so that a later beat tells what has become of them. Return the seconds until the next one
        is to stop, or nothing."""
        now, share = clock(), self.lease * LEASE_SHARE
        expired: List[Attempt] = []
        left: List[float] = []
        with self._changed:
            for attempt in running:
                if attempt.ended or attempt.context.should_stop or attempt.token not in self._held:
                    continue
                if now < attempt.renewed + share:
                    left.append(attempt.renewed + share - now)
                    continue
                attempt.expired = True
                expired.append(attempt)
        for attempt in expired:
            log.error("job %s is stopped: no beat was answered before its lease ends", attempt.context.job_id)
            self._deliver(attempt, Lost)
        return min(left, default=None)

    def _stop_fetching(self) -> None:
        with self._changed:
            self._stopping = True
            for attempt in self._held.values():
                attempt.context._leaving.set()
            self._changed.notify_all()
            abort, count = self._fetch_abort, len(self._running)
        log.info("stopping: %d jobs may end within %d ms", count, self.settings.grace_ms)
        if abort is not None:
            abort()

    def _leave(self) -> None:
        """Give back what has not ended, send the last verdicts, and leave."""
        with self._changed:
            self._leaving = True
            running = list(self._running.values())
            running += [follower for attempt in running for follower in attempt.followers]
        for attempt in running:
            self._deliver(attempt, Stopping)
        with self._changed:
            self._changed.wait_for(lambda: not self._running, STOP_TIME)
            remaining = list(self._running.values())
            for attempt in remaining:
                for one in (attempt, *attempt.followers):
                    log.warning("job %s has not ended and is given back", one.context.job_id)
                    self._conclude(one, End(one.token, "released"))
            self._running.clear()
            until = time.monotonic() + LEAVE_TIME
            self._changed.wait_for(lambda: not (self._ends or self._put_off or self._sending), LEAVE_TIME)
            self._closing = True
            self._changed.notify_all()
        self._handlers.close()
        self.join(1.0)  # so that no beat arrives behind the leave
        pause = Pause(len(self.transport.urls))
        while True:
            try:
                path = self._path(self.worker_id, "")[:-1]
                timeout = max(1.0, min(5.0, until - time.monotonic()))
                answer = self.transport.call("DELETE", path, timeout=timeout, pause=pause)
                if answer.status in (204, 404) or answer.status not in REPEATED_STATUSES:
                    break
            except ConnectionFailed as error:
                log.warning("the leave is repeated: %s", error)
            if time.monotonic() >= until:
                break
            time.sleep(min(pause.next(), max(0.0, until - time.monotonic())))
        log.info("left")
        if not self.done.done():
            self.done.set_result(None)

"""Workers: one that blocks its thread, and one for asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ._engine import Engine, Settings
from ._http import Transport, Urls
from .client import Client
from .context import AttemptLogHandler
from .errors import Delay, milliseconds
from .kinds import App

log = logging.getLogger("tickr.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that tell a worker to stop."""


class _Worker:
    """What the two workers have in common."""

    def __init__(
        self,
        app: App,
        *,
        url: Urls = None,
        token: Optional[str] = None,
        name: Optional[str] = None,
        queues: Optional[Sequence[str]] = None,
        slots: int = 4,
        lease_ms: Delay = 60_000,
        grace_ms: Delay = 25_000,
        wait_ms: Delay = 30_000,
        version: Optional[str] = None,
        exact: bool = False,
        capture_logs: bool = True,
        tls: Optional[ssl.SSLContext] = None,
        around: Optional[Callable[[Callable[[], Any]], Any]] = None,
        thread_ended: Optional[Callable[[], None]] = None,
        client: Optional[Client] = None,
    ):
        self._app = app
        # The worker has connections of its own, so that calls of handlers do not hold up its beats.
        self._transport = Transport(url, token, tls=tls)
        self._closes_client = client is None
        self._client = Client(url, token, exact=exact, tls=tls) if client is None else client
        self._settings = Settings(
            name=name or os.path.basename(sys.argv[0] or "") or socket.gethostname() or "python",
            queues=queues,
            slots=slots,
            lease_ms=milliseconds(lease_ms, "lease_ms"),
            grace_ms=milliseconds(grace_ms, "grace_ms"),
            wait_ms=milliseconds(wait_ms, "wait_ms"),
            version=version,
            exact=exact,
        )
        self._capture = capture_logs
        self._around = around
        self._thread_ended = thread_ended
        self._engine: Optional[Engine] = None
        self._stop_early = False

    def __repr__(self) -> str:
        return f"<tickr.{type(self).__name__} {', '.join(self._transport.urls)}>"

    @property
    def id(self) -> Optional[str]:
        """The id under which the worker is registered. None before."""
        return None if self._engine is None else self._engine.worker_id

    @property
    def client(self) -> Client:
        """The client that handlers get as `context.client`."""
        return self._client

    def stop(self) -> None:
        """Tell the worker to stop, from any thread. `run` returns when it has left."""
        self._stop_early = True
        if self._engine is not None:
            self._engine.stop()

    def _make(self, loop: Optional[asyncio.AbstractEventLoop]) -> Engine:
        engine = Engine(
            self._app,
            self._transport,
            self._client,
            self._settings,
            loop=loop,
            around=self._around,
            thread_ended=self._thread_ended,
        )
        self._engine = engine
        if self._stop_early:
            engine.stop()
        return engine

    def _close(self, engine: Engine) -> None:
        engine.join(1.0)
        self._transport.close()
        if self._closes_client:
            self._client.close()


_receivers: List[_Surroundings] = []
"""Those that receive the signals of this process."""


class _Surroundings:
    """The signals and the log handler of a worker that runs."""

    def __init__(self, worker: _Worker, signals: bool, capture: bool):
        self._worker = worker
        self._signals = signals and threading.current_thread() is threading.main_thread()
        self._log_handler = AttemptLogHandler() if capture else None
        self._before: Dict[int, Any] = {}
        self._ends: Optional[Tuple[socket.socket, socket.socket]] = None
        self._fd_before = -1

    def __enter__(self) -> _Surroundings:
        if self._log_handler is not None:
            logging.getLogger().addHandler(self._log_handler)
        if self._signals:
            # Python runs signal handlers in the main thread, which a handler of a job may block, or which sleeps on
            # when the system hands the signal to another thread. So a thread reads them from the wakeup fd.
            self._ends = socket.socketpair()
            self._ends[1].setblocking(False)
            self._fd_before = signal.set_wakeup_fd(self._ends[1].fileno(), warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, lambda *_: None)
            reader = threading.Thread(target=self._read, args=(self._ends[0],), name="tickr-signals", daemon=True)
            reader.start()
            _receivers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ends is not None:
            _receivers.remove(self)
            self._restore(self._fd_before)
            self._ends[1].close()
        if self._log_handler is not None:
            logging.getLogger().removeHandler(self._log_handler)

    def _restore(self, fd: int) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(fd)

    def forget(self) -> None:
        """Give up the signals in a forked process: they are its own, and must not stop the worker of its parent."""
        if self._ends is not None:
            self._restore(-1)
            for end in self._ends:
                end.close()
            self._ends = None

    def _read(self, end: socket.socket) -> None:
        seen = False
        with end:
            while True:
                try:
                    numbers = end.recv(64)
                except OSError:
                    return
                if not numbers:
                    return
                for number in numbers:
                    if number in SIGNALS:
                        if seen:
                            os._exit(128 + number)
                        seen = True
                        self._worker.stop()
                if self._fd_before >= 0:  # of another user of signals, such as an event loop
                    try:
                        os.write(self._fd_before, numbers)
                    except OSError:
                        pass


def _forget_in_child() -> None:
    while _receivers:
        _receivers.pop().forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Worker(_Worker):
    """Executes the jobs of the kinds of an App.

    - `url`, `token`: as for `Client`. The API key needs the scope `work`.
    - `name`: name of the program, with which the id of the worker begins.
    - `queues`: queues that it serves. Default: `default` and the queues of its kinds.
    - `slots`: number of jobs that it executes at once, 1 to 1,000.
    - `lease_ms`: time without a beat after which its jobs are taken away, 10,000 to 3,600,000.
    - `grace_ms`: time after a stop in which running jobs may end. What has not ended is given back.
    - `wait_ms`: longest wait of a request for jobs, at most 60,000.
    - `version`: version of the program, for operators.
    - `exact`: read JSON numbers with a fraction as Decimal.
    - `capture_logs`: write records of `logging` that a handler makes to the log of its attempt.
    - `around`: called with a function that runs a synchronous handler, in its thread; it returns what that one returns.
    - `thread_ended`: called in each thread for handlers before it ends.
    - `client`: what handlers get as `context.client`, with an API key of the scope `enqueue`, which also stands for
      the jobs of `context.then`. Default: a client with `token`, which enqueues nothing if that one has the scope
      `work`. The worker does not close it.

    Synchronous handlers run in threads, and coroutines as tasks of one event loop in a thread of the worker.
    """

    def run(self, *, signals: bool = True) -> None:
        """Execute jobs until the worker is told to stop, by `stop` or by SIGTERM or SIGINT.

        Signals are handled only in the main thread. After the first one the worker fetches nothing more, lets running
        jobs end within the grace, gives back the rest, and leaves. A second one ends the process at once. A server
        that cannot answer is waited for, also at the start. Raises ApiError if it refuses the worker.
        """
        loop = _Loop() if any(kind.is_async for kind in self._app) else None
        with _Surroundings(self, signals, self._capture):
            engine = self._make(None if loop is None else loop.loop)
            try:
                engine.start()
                engine.done.result()
            finally:
                self._close(engine)
                if loop is not None:
                    loop.close()


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="tickr-loop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():  # a handler may block it
            self.loop.close()


class AsyncWorker(_Worker):
    """The worker for asyncio, with the arguments of `Worker`.

    Coroutine handlers run as tasks of the loop that runs the worker, and synchronous ones in threads. A cancel reaches
    a task as asyncio.CancelledError. Requests and beats have threads of their own, so that a handler that blocks the
    loop loses no lease.
    """

    async def run(self, *, signals: bool = True) -> None:
        """Execute jobs until the worker is told to stop, as `Worker.run` does.

        When the task that awaits it is cancelled, the worker stops in the same way, and CancelledError follows.
        """
        loop = asyncio.get_running_loop()
        with _Surroundings(self, signals, self._capture):
            engine = self._make(loop)
            starting = loop.run_in_executor(None, engine.start)
            done = asyncio.wrap_future(engine.done)
            try:
                await asyncio.shield(starting)
                await asyncio.shield(done)
            except asyncio.CancelledError:
                engine.stop()
                await starting
                await done
                raise
            finally:
                await loop.run_in_executor(None, self._close, engine)

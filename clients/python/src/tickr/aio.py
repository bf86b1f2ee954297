"""The client for asyncio."""

from __future__ import annotations

import asyncio
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, TypeVar

from ._http import Urls
from .client import Client, Enqueued, Job, JobResult, KindName, NewJob, _Calls
from .options import JobOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncClient(_Calls):
    """The client for asyncio: `Client` with awaitable calls.

    Each call runs in a thread of a pool of its own, so a call that waits blocks neither the loop nor other users of the
    default executor. `threads` is the number of calls at a time. A call whose task is cancelled runs to its end in its
    thread, within its timeout; a job that it enqueues stays. A forked process gets connections and threads of its own.
    """

    def __init__(
        self,
        url: Urls = None,
        token: Optional[str] = None,
        *,
        timeout: float = 30.0,
        exact: bool = False,
        tls: Optional[ssl.SSLContext] = None,
        threads: int = 16,
        client: Optional[Client] = None,
    ):
        self.sync = client or Client(url, token, timeout=timeout, exact=exact, tls=tls)
        self._size = threads
        self._renew()

    def _renew(self) -> None:
        self._threads, self._pid = ThreadPoolExecutor(self._size, thread_name_prefix="tickr-client"), os.getpid()

    def __repr__(self) -> str:
        return f"<tickr.AsyncClient {', '.join(self.sync._transport.urls)}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the kept connections, and end the threads when their calls have ended."""
        self.sync.close()
        if self._pid == os.getpid():
            self._threads.shutdown(wait=False)

    async def _run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self._pid != os.getpid():
            # The threads of the pool are in the process that forked this one.
            self._renew()
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **kwargs))

    async def enqueue(
        self,
        kind: KindName,
        payload: Any = None,
        *,
        idempotency_key: Optional[str] = None,
        traceparent: Optional[str] = None,
        **options: Unpack[JobOptions],
    ) -> Enqueued:
        """Enqueue a job, as `Client.enqueue` does."""
        keys = {"idempotency_key": idempotency_key, "traceparent": traceparent}
        return await self._run(self.sync.enqueue, kind, payload, **keys, **options)

    async def enqueue_many(
        self, jobs: Sequence[NewJob], *, idempotency_key: Optional[str] = None, traceparent: Optional[str] = None
    ) -> List[Enqueued]:
        """Enqueue up to 1,000 jobs, all or none, as `Client.enqueue_many` does."""
        keys = {"idempotency_key": idempotency_key, "traceparent": traceparent}
        return await self._run(self.sync.enqueue_many, jobs, **keys)

    async def get(self, id: str) -> Job:
        """Return a job, as `Client.get` does."""
        return await self._run(self.sync.get, id)

    async def cancel(self, id: str, *, unless_executing: bool = False) -> Job:
        """Cancel a job, as `Client.cancel` does."""
        return await self._run(self.sync.cancel, id, unless_executing=unless_executing)

    async def wait(self, id: str, timeout: float = 60.0) -> JobResult:
        """Wait until a job has ended, as `Client.wait` does. `timeout` is in seconds."""
        return await self._run(self.sync.wait, id, timeout)

    async def log_of(self, id: str, number: int) -> Optional[str]:
        """Return the log of an attempt, as `Client.log_of` does."""
        return await self._run(self.sync.log_of, id, number)

    async def create_batch(self, jobs: Sequence[NewJob] = (), **fields: Any) -> Dict[str, Any]:
        """Create a batch, as `Client.create_batch` does, with the same arguments."""
        return await self._run(self.sync.create_batch, jobs, **fields)

    async def close_batch(self, id: str) -> Dict[str, Any]:
        """Close a batch, as `Client.close_batch` does."""
        return await self._run(self.sync.close_batch, id)

    async def get_batch(self, id: str) -> Dict[str, Any]:
        """Return a batch, as `Client.get_batch` does."""
        return await self._run(self.sync.get_batch, id)

    async def declare_kind(self, name: str, **fields: Any) -> Dict[str, Any]:
        """Declare a kind, as `Client.declare_kind` does, with the same arguments."""
        return await self._run(self.sync.declare_kind, name, **fields)

    async def nudge(self) -> None:
        """Let the jobs of committed transactions start at once."""
        await self._run(self.sync.nudge)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send any call of the API, as `Client.request` does."""
        return await self._run(self.sync.request, method, path, body)

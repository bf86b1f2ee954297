"""HTTP/1.1 with kept connections to a list of addresses. Only the standard library is used."""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union
from urllib.parse import urlsplit

from .errors import ApiError, ConnectionFailed

DEFAULT_URL = "http://127.0.0.1:7070"
CONNECT_TIMEOUT = 5.0
"""Longest time of one connect, in seconds."""
MAX_IDLE = 16
"""Most kept connections to one address."""
REPEATED_STATUSES = frozenset((408, 429, 502, 503, 504))
"""Answers after which a call is repeated. The server has done nothing, or an idempotency key makes it harmless."""

MAX_RETRY_AFTER = 60.0
"""Longest wait for `Retry-After`, in seconds."""

Urls = Union[str, Sequence[str], None]


def _clock() -> Callable[[], float]:
    boot: Any = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is not None:
        try:
            time.clock_gettime(boot)
        except OSError:
            pass
        else:
            return lambda: time.clock_gettime(boot)
    return time.monotonic


clock = _clock()
"""The seconds of a clock that is never set. On Linux it also counts the time for which the machine is suspended."""


class Answer:
    """The answer to a call."""

    __slots__ = ("again", "body", "headers", "place", "sent", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, sent: float):
        self.status = status
        self.headers = headers
        self.body = body
        self.sent = sent
        """The time of `clock` just before the call was sent, the last time."""
        self.again = False
        """True if the call was sent before as well, by a kept connection that then broke."""
        self.place = 0
        """The place of the address that answered."""

    @property
    def retry_after(self) -> float:
        """The seconds of `Retry-After`, 0 when there are none."""
        try:
            return max(0.0, float(self.headers.get("retry-after", "0")))
        except ValueError:
            return 0.0

    def error(self) -> ApiError:
        """Return the problem document as an exception, also of an answer that has none."""
        try:
            problem: Any = json.loads(self.body)
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            reason = http.client.responses.get(self.status, "unexpected answer")
            return ApiError(self.status, f"http_{self.status}", reason, "the answer is no problem document of tickr")
        texts = [str(problem.get(name, "")) for name in ("code", "title", "detail")]
        return ApiError(self.status, texts[0], texts[1], texts[2], problem)


class Abort:
    """Ends a call that waits, from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self.aborted = False

    def watch(self, sock: Optional[socket.socket]) -> None:
        """Note the socket of the call that runs. Raises ConnectionFailed if the call was ended already."""
        with self._lock:
            self._socket = sock
            if self.aborted and sock is not None:
                raise ConnectionFailed("the call was ended")

    def __call__(self) -> None:
        with self._lock:
            self.aborted = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Pause:
    """The addresses of a call that is repeated, and the pauses between its tries.

    The pauses grow from a tenth of a second to `longest`, with some chance in them. With several addresses a pause
    follows when all of them have failed, and the next one is tried at once before. An address that named a time with
    `Retry-After` gets no try of this call before that time, also when another one has failed since. If another one
    named none, the pause is over at that time.
    """

    def __init__(self, addresses: int = 1, longest: float = 5.0) -> None:
        self._longest = longest
        self._not_before = [0.0] * addresses
        self._failed: Set[int] = set()
        self._last: Optional[int] = None
        self._rounds = 0

    def place(self, current: int) -> int:
        """Return the place of the address for the next try. `current` is the one that others use."""
        now, count = time.monotonic(), len(self._not_before)
        order = [(current + step) % count for step in range(count)]
        free = [place for place in order if self._not_before[place] <= now] or order
        self._last = next((place for place in free if place not in self._failed), free[0])
        return self._last

    def next(self, at_least: float = 0.0) -> float:
        """Return the seconds until the next try, after one that failed. `at_least` is what its address asked for."""
        now, places = time.monotonic(), range(len(self._not_before))
        # Beats do not ask for a place: their tries go round.
        place = len(self._failed) if self._last is None else self._last
        self._failed.add(place)
        self._not_before[place] = now + min(at_least, MAX_RETRY_AFTER)
        if any(other not in self._failed and self._not_before[other] <= now for other in places):
            return 0.02
        self._failed.clear()
        self._rounds += 1
        grown: float = min(self._longest, 0.1 * 2 ** min(self._rounds, 10)) * random.uniform(0.6, 1.0)
        named = [moment - now for moment in self._not_before if moment > now]
        return max(grown, min(named)) if len(named) == len(self._not_before) else min([grown, *named])

    def reset(self) -> None:
        """Begin with short pauses again."""
        self._failed.clear()
        self._rounds = 0


class _Timed(io.RawIOBase):
    """What arrives at a socket, until a deadline. A timeout of the socket alone begins again with each byte."""

    def __init__(self, sock: _Bounded):
        self._sock = sock
        self._raw = sock.raw.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        self._sock.limit()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Bounded:
    """A socket with a deadline, as far as http.client uses one."""

    def __init__(self, raw: socket.socket):
        self.raw = raw
        self.deadline = 0.0

    def limit(self) -> None:
        """Let the socket wait until the deadline, and no longer. Raises TimeoutError if it is over."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.raw.settimeout(left)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self))

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self.limit()
            rest = rest[self.raw.send(rest) :]

    def close(self) -> None:
        self.raw.close()


class _Secret:
    """Keeps the token out of repr, logs, tracebacks with locals, and pickles."""

    __slots__ = ("_value",)

    def __init__(self, value: str):
        self._value = value

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> str:
        raise TypeError("a token is not pickled")

    def header(self) -> str:
        return "Bearer " + self._value


class _Address:
    """One address of the list, with its kept connections."""

    def __init__(self, url: str, tls: Optional[ssl.SSLContext]):
        parts = urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a URL of tickr begins with http:// or https:// and names a host")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            # The text is not repeated: it may hold a password.
            raise ValueError("a URL of tickr has no user, password, query or fragment: pass the token as `token`")
        self.host = parts.hostname
        self.port = parts.port
        self.prefix = parts.path.rstrip("/")
        self.tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.text = f"{parts.scheme}://{host}{f':{self.port}' if self.port else ''}{self.prefix}"
        self._idle: Deque[http.client.HTTPConnection] = deque()
        self._pid = os.getpid()

    def kept(self) -> Optional[http.client.HTTPConnection]:
        if self._pid != os.getpid():
            # A forked process must not share the connections of its parent. deque is used without a lock, because a
            # lock that another thread of the parent held during the fork would stay locked here.
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def keep(self, connection: http.client.HTTPConnection) -> None:
        if len(self._idle) < MAX_IDLE and self._pid == os.getpid():
            self._idle.append(connection)
        else:
            connection.close()

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        connect = max(0.01, min(timeout, CONNECT_TIMEOUT))
        if self.tls is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=connect)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=connect, context=self.tls)
        connection.connect()
        bounded: Any = _Bounded(connection.sock)
        connection.sock = bounded
        return connection

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Transport:
    """Sends calls to one of several addresses. Threads may share it.

    `url` is one address or several, as a list or separated by commas; without it `TICKR_URL` counts. `token` is an API
    key; without it `TICKR_TOKEN` counts. Raises ValueError if one of them cannot be used.
    """

    def __init__(self, url: Urls = None, token: Optional[str] = None, *, tls: Optional[ssl.SSLContext] = None):
        url = url or os.environ.get("TICKR_URL") or DEFAULT_URL
        texts = url.split(",") if isinstance(url, str) else list(url)
        self._addresses = [_Address(text.strip(), tls) for text in texts if text.strip()]
        if not self._addresses:
            raise ValueError("there is no URL of tickr")
        token = token or os.environ.get("TICKR_TOKEN") or None
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            # http.client would refuse it with a message that repeats it.
            raise ValueError("the token has a character that a header cannot carry")
        self._secret = None if token is None else _Secret(token)
        self._current = 0

    def __repr__(self) -> str:
        return f"<{', '.join(self.urls)}>"

    @property
    def urls(self) -> List[str]:
        """The addresses, without the token."""
        return [address.text for address in self._addresses]

    def failed(self, place: int) -> None:
        """Go on with the next address, unless another thread has done so."""
        if self._current == place:
            self._current = (place + 1) % len(self._addresses)

    @property
    def secret(self) -> Optional[_Secret]:
        """The token, which does not show itself."""
        return self._secret

    @property
    def current(self) -> int:
        """The place of the address that the next call is sent to."""
        return self._current

    def close(self) -> None:
        """Close the kept connections."""
        for address in self._addresses:
            address.close()

    def call(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, Union[str, _Secret]]] = None,
        *,
        timeout: float,
        abort: Optional[Abort] = None,
        pause: Optional[Pause] = None,
    ) -> Answer:
        """Send a call once to the current address, and go on with the next address for later calls if it fails.

        With `pause` the call goes to the address whose turn it is. A kept connection that the server has closed in
        between is replaced by a new one. Every call of this package may be sent twice. Raises ConnectionFailed when no
        whole answer came within `timeout` seconds.
        """
        place = self._current if pause is None else pause.place(self._current)
        address = self._addresses[place]
        deadline = time.monotonic() + timeout
        sent: Dict[str, Union[str, _Secret]] = {"accept": "application/json", "user-agent": "tickr-python/0.1.0"}
        sent.update(headers or {})
        if self._secret is not None:
            # Tools that report errors show the variables of this frame, so the token is not written out here.
            sent["authorization"] = self._secret
        if body is not None:
            sent["content-type"] = "application/json"
            sent["content-length"] = str(len(body))
        elif method in ("POST", "PUT", "PATCH"):
            sent["content-length"] = "0"
        abort = abort or Abort()
        again = False
        try:
            while True:
                connection = address.kept()
                reused = connection is not None
                try:
                    if connection is None:
                        connection = address.connect(deadline - time.monotonic())
                    answer = self._exchange(connection, address, (method, path, body, sent), deadline, abort)
                    break
                except (OSError, http.client.HTTPException, ConnectionFailed) as error:
                    if connection is not None:
                        connection.close()
                    # A timeout says nothing about the kept connection, so only a closed one is replaced.
                    closed = isinstance(error, (ConnectionError, http.client.BadStatusLine))
                    if not (reused and closed) or abort.aborted or time.monotonic() >= deadline:
                        raise
                    again = True
        except (OSError, http.client.HTTPException) as error:
            self.failed(place)
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"{address.text} did not answer: {reason}") from None
        answer.place, answer.again = place, again
        if answer.status in REPEATED_STATUSES:
            self.failed(place)
        return answer

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        address: _Address,
        request: Tuple[str, str, Optional[bytes], Mapping[str, Union[str, _Secret]]],
        deadline: float,
        abort: Abort,
    ) -> Answer:
        method, path, body, headers = request
        bounded: Any = connection.sock
        sock: _Bounded = bounded
        try:
            abort.watch(sock.raw)
            sock.deadline = deadline
            sock.limit()
            sent = clock()
            connection.putrequest(method, address.prefix + path)
            for name, value in headers.items():
                connection.putheader(name, value.header() if isinstance(value, _Secret) else value)
            connection.endheaders(body)
            response = connection.getresponse()
            parts = []
            while True:
                part = response.read(1 << 20)
                if not part:
                    break
                parts.append(part)
            # A read of parts does not notice that the rest of the body is missing.
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
        finally:
            abort.watch(None)
        received = {k.lower(): v for k, v in response.getheaders()}
        answer = Answer(response.status, received, b"".join(parts), sent)
        if response.will_close:
            connection.close()
        else:
            address.keep(connection)
        return answer

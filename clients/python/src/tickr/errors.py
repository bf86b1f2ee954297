"""Errors that this package raises, verdicts that a handler raises, and stops that a handler receives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Dict, List, Optional, Union

Delay = Union[int, timedelta]
"""A time in whole milliseconds, or a timedelta."""


def milliseconds(value: Delay, name: str = "delay_ms") -> int:
    """Return a delay in whole milliseconds. Raises TypeError or ValueError if it is no delay."""
    if isinstance(value, timedelta):
        value = round(value / timedelta(milliseconds=1))
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be whole milliseconds or a timedelta")
    if value < 0:
        raise ValueError(f"{name} must not be negative")
    return value


def text_of(error: object) -> str:
    """Return the type, with its module, and the message of an exception, and a text as it is."""
    if isinstance(error, str):
        return error
    try:
        message = str(error)
    except Exception:
        message = "its message cannot be read"
    if not isinstance(error, BaseException):
        return message
    kind = type(error)
    home = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    name = home + kind.__qualname__
    return f"{name}: {message}" if message else name


class TickrError(Exception):
    """Base of the errors that the clients and workers of this package raise."""


class ConnectionFailed(TickrError):
    """No address answered within the time of the call. The call may have been carried out."""


class ApiError(TickrError):
    """A problem document: the server refused the call.

    `code` is stable and meant for programs, `detail` is for people. `errors` lists the single faults, each with
    `pointer` and `detail`. `problem` is the whole document.
    """

    def __init__(self, status: int, code: str, title: str, detail: str, problem: Optional[Dict[str, Any]] = None):
        super().__init__(status, code, title, detail)
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail
        self.problem: Dict[str, Any] = problem or {}

    @property
    def errors(self) -> List[Dict[str, str]]:
        """The single faults of the request, each with `pointer` and `detail`."""
        found = self.problem.get("errors")
        return found if isinstance(found, list) else []

    @property
    def current_state(self) -> Optional[str]:
        """The state of the job, with the codes `wrong_state` and `unique_key_taken`."""
        return self.problem.get("current_state")

    @property
    def holder(self) -> Optional[str]:
        """The id of the job that has the unique key, with the code `unique_key_taken`."""
        return self.problem.get("holder")

    def __str__(self) -> str:
        faults = "; ".join(f"{fault.get('pointer', '')}: {fault.get('detail', '')}" for fault in self.errors[:5])
        text = f"{self.status} {self.code}: {self.detail or self.title}"
        return f"{text} ({faults})" if faults else text


class WaitTimeout(TickrError):
    """The job has not ended within the time of the wait. It goes on."""


class JobFailed(TickrError):
    """The job that was waited for failed or was cancelled. `state` and `last_error` say how."""

    def __init__(self, id: str, state: str, last_error: Optional[str]):
        super().__init__(id, state, last_error)
        self.id = id
        self.state = state
        self.last_error = last_error

    def __str__(self) -> str:
        return f"job {self.id} is {self.state}: {self.last_error or 'no error was given'}"


class PayloadError(TickrError, ValueError):
    """A payload does not fit the type of its kind, or a value cannot be written as JSON."""


class Verdict(Exception):
    """Base of the verdicts that a handler raises to end its attempt. A handler that returns has succeeded.

    Its error is a text. That of an exception is the type and the message.
    """


class Failed(Verdict):
    """The attempt failed, and another one may succeed. `delay_ms` replaces the backoff of the job."""

    def __init__(self, error: Union[str, BaseException], delay_ms: Optional[Delay] = None):
        super().__init__(error)
        self.error = text_of(error)
        self.delay_ms = None if delay_ms is None else milliseconds(delay_ms)


class Rejected(Verdict):
    """No attempt of this job can succeed. The job fails at once."""

    def __init__(self, error: Union[str, BaseException]):
        super().__init__(error)
        self.error = text_of(error)


class Snoozed(Verdict):
    """The job runs again after `delay_ms`, and no attempt is used."""

    def __init__(self, error: Union[str, BaseException], delay_ms: Delay):
        super().__init__(error)
        self.error = text_of(error)
        self.delay_ms = milliseconds(delay_ms)


class Released(Verdict):
    """The job is given back at once, and no attempt is used."""


class AttemptStopped(BaseException):
    """Base of the stops that a handler receives at its next `check()` or `sleep()`.

    It is no Exception, as asyncio.CancelledError is none: a handler that catches Exception does not swallow it.
    """


class Cancelled(AttemptStopped):
    """The job was cancelled, or the server says that the time of the attempt is over."""


class DeadlineExceeded(Cancelled):
    """The time limit of the attempt is over."""


class Lost(AttemptStopped):
    """The worker does not hold the attempt any more, or no heartbeat was answered for nine tenths of its lease. Another
    worker may have the job."""


class Stopping(AttemptStopped):
    """The worker stops and its grace is over. The job is given back, and no attempt is used."""

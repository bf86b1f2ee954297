"""The options of a job, by their names in the API."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Dict, FrozenSet, List, Literal, Mapping, TypedDict, Union

from ._json import rfc3339, whole_milliseconds
from .errors import Delay, milliseconds

Moment = Union[datetime, str]
"""A datetime with a time zone, or text in RFC 3339."""


class Retry(TypedDict, total=False):
    """Backoff between the attempts of a job: `base_ms`, `factor` and `cap_ms`, or `delays_ms`, in milliseconds."""

    base_ms: int
    factor: float
    cap_ms: int
    delays_ms: List[int]
    jitter: float


class JobOptions(TypedDict, total=False):
    """Every option of `POST /v1/jobs`. Times are in milliseconds, as an int or a timedelta."""

    queue: str
    """Name of the queue. Default: that of the kind, or `default`."""
    execute_at: Moment
    """Time at which the job becomes due. Not together with `delay_ms`."""
    delay_ms: Delay
    """Delay after which the job becomes due, at most 366 days."""
    expires_at: Moment
    """Time from which on no attempt starts. Not together with `expires_in_ms`."""
    expires_in_ms: Delay
    """The same as a time after the acceptance."""
    max_attempts: int
    """Number of attempts before the job fails, 1 to 100."""
    timeout_ms: Delay
    """Time limit of one attempt, at most 24 hours."""
    priority: int
    """Priority within the queue: 0 runs first, 9 last. Default: 5."""
    unique_key: str
    """At most one unfinished job of the kind has this key."""
    unique_fields: List[str]
    """JSON pointers into the payload that make the unique key. Instead of `unique_key`."""
    on_conflict: Literal["return", "reject", "replace", "postpone"]
    """What happens when an unfinished job has the unique key. Default: `return`."""
    max_wait_ms: Delay
    """Requests with the same unique key put the job off at most this long. Only with `postpone`."""
    unique_until: Literal["end", "start"]
    """When the job gives up its unique key. Default: `end`."""
    unique_for_ms: Delay
    """The unique key stays taken for at least this long after the acceptance."""
    order_key: str
    """Jobs with the same order key run one at a time, in the order in which they were accepted."""
    on_failure: Literal["block", "skip"]
    """What the final failure of the job does to those behind it with the same order key. Default: `block`."""
    limit_key: str
    """The limits that operators set count the jobs with the same limit key."""
    after: List[Union[str, int]]
    """Parents of the job: ids, or in one bulk request also positions of earlier jobs, counted from 0."""
    on_parent_failure: Literal["cancel", "run", "hold"]
    """What happens to the job when a parent fails for good or is cancelled. Default: `cancel`."""
    batch: str
    """Id of the batch that counts the job."""
    retry: Retry
    """Backoff between attempts. Default: that of the kind."""
    tags: List[str]
    """Tags to find the job by, at most ten."""
    trace: Dict[str, Any]
    """Trace that the attempts continue: `traceparent` and perhaps `tracestate`."""


NAMES = frozenset(JobOptions.__annotations__)

FOLLOW_UP_NAMES = frozenset(
    "queue execute_at delay_ms expires_in_ms max_attempts timeout_ms priority order_key on_failure limit_key retry "
    "tags in_batch".split()
)
"""The options of a job that follows a success."""


def checked(options: Mapping[str, Any], names: FrozenSet[str] = NAMES) -> Dict[str, Any]:
    """Return options as the API takes them. An option that is None is left out. `names` are those that there are.

    Raises TypeError for a name that is no option, and for a value that has no JSON of this option.
    """
    body: Dict[str, Any] = {}
    for name, value in options.items():
        if name not in names:
            raise TypeError(f"{name!r} is no option of such a job; the options are {', '.join(sorted(names))}")
        if value is None:
            continue
        if isinstance(value, datetime):
            # A job must neither start before its time nor after its end, so one is rounded up and the other down.
            value = rfc3339(whole_milliseconds(value) if name == "execute_at" else value)
        elif isinstance(value, timedelta) or name.endswith("_ms"):
            value = milliseconds(value, name)
        elif isinstance(value, (set, frozenset, tuple)):
            value = list(value)
        elif name in ("tags", "unique_fields", "after") and isinstance(value, str):
            raise TypeError(f"{name} must be a list")
        body[name] = value
    return body

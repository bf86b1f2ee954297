"""Kinds and their handlers."""

from __future__ import annotations

import inspect
import threading
import typing
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, Iterator, List, Optional, TypeVar, Union

from . import payloads
from .client import Client, Enqueued, NewJob
from .errors import Delay, milliseconds
from .options import JobOptions, Retry, checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .context import Context

P = TypeVar("P")
Handler = Union[Callable[[P], Any], Callable[[P, "Context"], Any]]
"""A function, or a coroutine function, of the payload, and perhaps of the context."""


class Kind(Generic[P]):
    """A kind with its payload type and its handler. `App.kind` makes it. A call runs the handler as it is."""

    def __init__(
        self,
        app: App,
        name: str,
        handler: Handler[P],
        payload_type: Any,
        defaults: Dict[str, Any],
    ):
        self.app = app
        self.name = name
        self.handler = handler
        self.payload_type = payload_type
        self.defaults = defaults
        self.is_async = inspect.iscoroutinefunction(handler)
        wanted = [
            parameter
            for parameter in inspect.signature(handler).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if not 1 <= len(wanted) <= 2:
            raise TypeError("a handler takes the payload, or the payload and the context")
        self.takes_context = len(wanted) == 2
        try:
            payloads.schema(payload_type)  # A type that no payload can have is an error here, and not in each job.
        except NameError:  # it names a type that follows later in the module
            pass
        self.__doc__ = handler.__doc__
        self.__name__ = getattr(handler, "__name__", name)
        self.__module__ = handler.__module__

    def __repr__(self) -> str:
        return f"<tickr.Kind {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def read(self, payload: Any) -> P:
        """Make the payload from JSON. Raises PayloadError if it does not fit the type."""
        return typing.cast(P, payloads.read(self.payload_type, payload))

    def schema(self) -> Optional[Dict[str, Any]]:
        """Return the JSON Schema of the payload. None if any JSON will do."""
        return payloads.schema(self.payload_type) or None

    def job(self, payload: P, **options: Unpack[JobOptions]) -> NewJob:
        """Make a job for `enqueue_many` and `create_batch`."""
        return NewJob(self.name, payload, checked(options))

    def enqueue(self, payload: P, *, idempotency_key: Optional[str] = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Enqueue a job of this kind with the client of its App. See `Client.enqueue`."""
        return self.app.client.enqueue(self, payload, idempotency_key=idempotency_key, **options)

    def declare(self, client: Optional[Client] = None) -> Dict[str, Any]:
        """Declare the kind on the server, with the schema of its payload. Needs an admin key."""
        return (client or self.app.client).declare_kind(self.name, schema=self.schema(), **self.defaults)


class App:
    """The kinds of a program.

    `client` is the client with which its kinds enqueue. Without it, one is made at the first use, from `TICKR_URL` and
    `TICKR_TOKEN`.
    """

    def __init__(self, client: Optional[Client] = None):
        self._client = client
        self._kinds: Dict[str, Kind[Any]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<tickr.App {', '.join(self._kinds)}>"

    def __iter__(self) -> Iterator[Kind[Any]]:
        return iter(self._kinds.values())

    def __len__(self) -> int:
        return len(self._kinds)

    @property
    def client(self) -> Client:
        """The client with which the kinds enqueue. Tests set it to a `tickr.testing.FakeClient`."""
        with self._lock:
            if self._client is None:
                self._client = Client()
            return self._client

    @client.setter
    def client(self, client: Optional[Client]) -> None:
        self._client = client

    def get(self, name: str) -> Optional[Kind[Any]]:
        """Return a kind by its name. None if there is none."""
        return self._kinds.get(name)

    def include(self, other: App) -> None:
        """Add the kinds of another App. They go on to enqueue with its client."""
        for kind in other:
            if kind.name in self._kinds:
                raise ValueError(f"the kind {kind.name!r} has a handler already")
            self._kinds[kind.name] = kind

    def kind(
        self,
        name: str,
        *,
        payload: Any = None,
        queue: Optional[str] = None,
        max_attempts: Optional[int] = None,
        timeout_ms: Optional[Delay] = None,
        retry: Optional[Retry] = None,
        description: Optional[str] = None,
    ) -> Callable[[Handler[P]], Kind[P]]:
        """Make a kind of the decorated function, its handler.

        The payload type is the annotation of the first parameter, or `payload`: a dataclass, a TypedDict, a model of
        pydantic 2, or any other type that JSON has. Without one the handler gets the JSON as it is. The other arguments
        are used by `declare`: the defaults of jobs that set no options of their own.
        """

        def decorate(handler: Handler[P]) -> Kind[P]:
            if name in self._kinds:
                raise ValueError(f"the kind {name!r} has a handler already")
            given = {
                "queue": queue,
                "max_attempts": max_attempts,
                "timeout_ms": None if timeout_ms is None else milliseconds(timeout_ms, "timeout_ms"),
                "retry": retry,
                "description": description or _first_line(handler),
            }
            defaults = {key: value for key, value in given.items() if value is not None}
            kind = Kind[P](self, name, handler, payload or _payload_type(handler), defaults)
            self._kinds[name] = kind
            return kind

        return decorate

    def declare(self, client: Optional[Client] = None) -> List[Dict[str, Any]]:
        """Declare all kinds on the server. Needs an admin key."""
        return [kind.declare(client) for kind in self]


def _first_line(handler: Callable[..., Any]) -> Optional[str]:
    lines = (inspect.getdoc(handler) or "").strip().splitlines()
    return lines[0][:500] if lines else None


def _payload_type(handler: Callable[..., Any]) -> Any:
    """Return the annotation of the first parameter."""
    first = next(iter(inspect.signature(handler).parameters.values()), None)
    if first is None or first.annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(first.annotation, str):
        return first.annotation
    # Only this annotation is evaluated: the others may name types that are imported for type checkers alone.
    scope = {**getattr(handler, "__globals__", {})}
    closure = inspect.getclosurevars(handler).nonlocals if inspect.isfunction(handler) else {}
    try:
        return eval(first.annotation, scope, dict(closure))
    except NameError as error:
        raise TypeError(f"the payload type {first.annotation!r} is not known here: pass it as `payload`") from error

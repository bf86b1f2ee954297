"""Payload types: from JSON to dataclasses, TypedDicts and models of pydantic, and from them to a JSON Schema."""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
import types
import typing
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Dict, List, Literal, Mapping, Tuple, Union, get_args, get_origin
from uuid import UUID

from ._json import parse_time
from .errors import PayloadError

_UNIONS: Tuple[Any, ...] = (Union,) + ((types.UnionType,) if sys.version_info >= (3, 10) else ())
_LISTS: Tuple[Any, ...] = (list, tuple, set, frozenset)
_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


def is_typed_dict(kind: Any) -> bool:
    """Return True for a TypedDict, of typing or of typing_extensions."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


def is_model(kind: Any) -> bool:
    """Return True for a model of pydantic 2. It is known by its methods, so that pydantic need not be installed."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def hints(kind: Any) -> Dict[str, Any]:
    """Return the types of the fields of a class, without Annotated, Required and NotRequired."""
    return {name: _bare(hint) for name, hint in typing.get_type_hints(kind).items()}


def _bare(hint: Any) -> Any:
    name = getattr(get_origin(hint), "_name", None)
    return _bare(get_args(hint)[0]) if name in ("Required", "NotRequired", "ReadOnly") else hint


def read(kind: Any, value: Any, at: str = "") -> Any:
    """Make a value of the type `kind` from JSON. Raises PayloadError with a JSON pointer if it does not fit.

    Fields that the type does not have are left out, so that a newer program may send more than an older one knows.
    """
    if kind is Any or kind is object or isinstance(kind, typing.TypeVar):
        return value
    if is_model(kind):
        try:
            return kind.model_validate(value)
        except ValueError as error:
            raise _wrong(at, str(error)) from error
    origin, args = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return _read_union(args, value, at)
    if origin is Literal:
        if value in args:
            return value
        raise _wrong(at, f"must be one of {', '.join(map(repr, args))}")
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, at)
    if is_typed_dict(kind):
        return _read_typed_dict(kind, value, at)
    container = origin or kind
    if isinstance(container, type) and issubclass(container, _LISTS):
        return _read_list(container, args, value, at)
    if isinstance(container, type) and issubclass(container, Mapping):
        if not isinstance(value, dict):
            raise _wrong(at, "must be an object")
        of = args[1] if len(args) == 2 else Any
        return {key: read(of, item, f"{at}/{key}") for key, item in value.items()}
    if container is collections.abc.Sequence:
        return _read_list(list, args, value, at)
    return _read_scalar(kind, value, at)


def _wrong(at: str, what: str) -> PayloadError:
    return PayloadError(f"{at or '/'} {what}")


def _read_union(args: Tuple[Any, ...], value: Any, at: str) -> Any:
    problems = []
    for one in args:
        try:
            return read(one, value, at)
        except PayloadError as error:
            if one is not type(None):
                problems.append(str(error))
    raise PayloadError(" or ".join(problems))


def _read_dataclass(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(at, "must be an object")
    types_of, given = hints(kind), {}
    for each in dataclasses.fields(kind):
        if not each.init:
            continue
        if each.name in value:
            given[each.name] = read(types_of[each.name], value[each.name], f"{at}/{each.name}")
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise _wrong(f"{at}/{each.name}", "is missing")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:  # of its __post_init__
        raise _wrong(at, str(error)) from error


def _read_typed_dict(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(at, "must be an object")
    types_of = hints(kind)
    for name in kind.__required_keys__:
        if name not in value:
            raise _wrong(f"{at}/{name}", "is missing")
    return {name: read(types_of[name], value[name], f"{at}/{name}") for name in types_of if name in value}


def _read_list(container: Any, args: Tuple[Any, ...], value: Any, at: str) -> Any:
    if not isinstance(value, list):
        raise _wrong(at, "must be an array")
    if issubclass(container, tuple) and args and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise _wrong(at, f"must have {len(args)} elements")
        return tuple(read(of, item, f"{at}/{place}") for place, (of, item) in enumerate(zip(args, value)))
    of = args[0] if args else Any
    return container(read(of, item, f"{at}/{place}") for place, item in enumerate(value))


def _read_scalar(kind: Any, value: Any, at: str) -> Any:
    if kind is type(None) or kind is None:
        if value is None:
            return None
        raise _wrong(at, "must be null")
    if kind is bool or kind is str or kind is int:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise _wrong(at, f"must be {_NAMES[kind]}")
    if kind is float:
        if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
            return float(value)
        raise _wrong(at, "must be a number")
    if not isinstance(kind, type):
        raise TypeError(f"{kind!r} is no type for a field of a payload")
    try:
        if issubclass(kind, Enum):
            return kind(value)
        if kind is Decimal:
            if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
                raise _wrong(at, "must be a number")
            return Decimal(repr(value) if isinstance(value, float) else value)
        if kind is datetime:
            return parse_time(value)
        if kind is date:
            return date.fromisoformat(value)
        if kind is UUID:
            return UUID(value)
    except PayloadError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise _wrong(at, f"is no {kind.__name__}") from error
    raise TypeError(f"{kind!r} is no type for a field of a payload")


def schema(kind: Any) -> Dict[str, Any]:
    """Return the JSON Schema of a payload type. Objects may have further fields, as `read` leaves them out."""
    if kind is Any or kind is object or isinstance(kind, typing.TypeVar):
        return {}
    if is_model(kind):
        return dict(kind.model_json_schema())
    origin, args = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return {"anyOf": [schema(one) for one in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        missing = dataclasses.MISSING
        fields = [field for field in dataclasses.fields(kind) if field.init]
        needed = [f.name for f in fields if f.default is missing and f.default_factory is missing]
        types_of = hints(kind)
        return _object({field.name: types_of[field.name] for field in fields}, needed)
    if is_typed_dict(kind):
        return _object(hints(kind), sorted(kind.__required_keys__))
    container = origin or kind
    if isinstance(container, type) and issubclass(container, _LISTS):
        if issubclass(container, tuple) and args and args[-1] is not Ellipsis:
            items = [schema(one) for one in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "items": schema(args[0])} if args else {"type": "array"}
    if isinstance(container, type) and issubclass(container, Mapping):
        return {"type": "object", "additionalProperties": schema(args[1])} if len(args) == 2 else {"type": "object"}
    simple: Dict[Any, Dict[str, Any]] = {
        str: {"type": "string"},
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        type(None): {"type": "null"},
        Decimal: {"type": ["number", "string"]},
        datetime: {"type": "string", "format": "date-time"},
        date: {"type": "string", "format": "date"},
        UUID: {"type": "string", "format": "uuid"},
    }
    if kind in simple:
        return simple[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if container is collections.abc.Sequence:
        return {"type": "array", "items": schema(args[0])} if args else {"type": "array"}
    raise TypeError(f"{kind!r} is no type for a field of a payload")


def _object(fields: Dict[str, Any], required: List[str]) -> Dict[str, Any]:
    found: Dict[str, Any] = {"type": "object", "properties": {name: schema(hint) for name, hint in fields.items()}}
    if required:
        found["required"] = required
    return found

"""JSON without loss: whole numbers of any size, and decimals as Decimal."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Callable, Dict, Optional, Union
from uuid import UUID

from .errors import PayloadError


def rfc3339(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC with milliseconds. Raises ValueError if it has no time zone."""
    if moment.tzinfo is None:
        raise ValueError("a datetime without a time zone is ambiguous: pass an aware one")
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole_milliseconds(moment: datetime) -> datetime:
    """Return the first whole millisecond that is not before a time."""
    return moment + timedelta(microseconds=-moment.microsecond % 1000)


def parse_time(text: str) -> datetime:
    """Read a time of the API. Python 3.9 does not read a Z, so it is replaced."""
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


class _Writer:
    """The hook for values that json does not know. It marks decimals, whose digits are put in afterwards.

    json writes no number but int and float, and a float loses digits. So a decimal becomes a string with a random
    mark, which no text of the caller can contain by chance, and loses its quotes at the end.
    """

    def __init__(self) -> None:
        self.mark: Optional[str] = None

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Decimal):
            if not value.is_finite():
                raise PayloadError(f"{value} is no JSON number")
            self.mark = self.mark or f"decimal-{os.urandom(12).hex()}:"
            return self.mark + str(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if hasattr(value, "model_dump"):  # a model of pydantic 2
            return value.model_dump(mode="json")
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, datetime):
            return rfc3339(value)
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, UUID):
            return str(value)
        if isinstance(value, Mapping):
            return dict(value)
        raise PayloadError(f"a value of the type {type(value).__qualname__} cannot be written as JSON")


def encode(value: Any) -> bytes:
    """Write a value as JSON in UTF-8.

    Besides the types of json it takes dataclasses, Decimal, Enum, datetime with a time zone, date and UUID.
    Raises PayloadError if there is no JSON for the value.
    """
    writer = _Writer()
    try:
        text = json.dumps(value, default=writer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if writer.mark is not None:
            text = re.sub(f'"{writer.mark}([^"]*)"', r"\1", text)
        return text.encode("utf-8")
    except PayloadError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"cannot be written as JSON: {error}") from error


def levels(text: bytes) -> int:
    """Return how deep arrays and objects of JSON are nested."""
    deepest = level = 0
    for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)):
        level += 1 if bracket in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


def _whole(text: str) -> Union[int, Decimal]:
    try:
        return int(text)
    except ValueError:  # Python limits the digits of an int; a Decimal has no such limit
        return Decimal(text)


def _float(text: str) -> Union[float, Decimal]:
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


def decode(text: bytes, exact: bool = False) -> Any:
    """Read JSON. With `exact`, numbers with a fraction or an exponent become Decimal and lose no digit."""
    real: Callable[[str], Any] = Decimal if exact else _float
    return json.loads(text, parse_float=real, parse_int=_whole)


def joined(fields: Dict[str, Any], raw: Dict[str, bytes]) -> bytes:
    """Write an object whose `raw` fields are JSON already."""
    parts = [encode(name) + b":" + encode(value) for name, value in fields.items()]
    parts += [encode(name) + b":" + text for name, text in raw.items()]
    return b"{" + b",".join(parts) + b"}"

"""Jobs in a transaction of your own, by the table `tickr_outbox`."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol
from uuid import UUID

from . import _json
from ._ids import uuid7
from .client import KindName, _name
from .errors import PayloadError
from .options import JobOptions, checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_PAYLOAD_BYTES = 1 << 20
DEFAULT_TABLE = "tickr_outbox"


class Cursor(Protocol):
    """A cursor of DB-API 2.0."""

    def execute(self, operation: str, parameters: Any = ..., /) -> Any:
        """Execute a statement."""


class Connection(Protocol):
    """A connection of DB-API 2.0."""

    def cursor(self) -> Any:
        """Return a cursor."""


def new_id() -> str:
    """Make the id of a job. A transaction that is repeated uses the same one again, and enqueues one job."""
    return str(uuid7())


def enqueue(
    connection: Connection,
    kind: KindName,
    payload: Any = None,
    *,
    id: Optional[str] = None,
    table: str = DEFAULT_TABLE,
    traceparent: Optional[str] = None,
    **options: Unpack[JobOptions],
) -> str:
    """Enqueue a job in the open transaction of a connection, and return its id.

    The job exists exactly if the caller commits. It starts about a tenth of a second after the COMMIT, the first
    one after a quiet time within about a second, and at once after `Client.nudge`. The server checks the row when it
    makes a job of it: a row with an unknown kind or a payload that does not fit is kept with the rejected ones.

    `connection` is one of PyMySQL, mysqlclient, Django or any other DB-API driver whose parameters are `%s`, with
    autocommit off or within BEGIN. `table` may name the database as well: `tickr.tickr_outbox`.

    `id` is a UUIDv7 made by `new_id`, at most a day ago. A transaction whose COMMIT was not answered is run again with
    the same one. If the driver then says that the primary key is there already, the first COMMIT was carried out.

    Raises PayloadError if the payload has no JSON, or more than 1 MiB of it.
    """
    cursor = connection.cursor()
    try:
        return enqueue_with_cursor(cursor, kind, payload, id=id, table=table, traceparent=traceparent, **options)
    finally:
        cursor.close()


def enqueue_with_cursor(
    cursor: Cursor,
    kind: KindName,
    payload: Any = None,
    *,
    id: Optional[str] = None,
    table: str = DEFAULT_TABLE,
    traceparent: Optional[str] = None,
    **options: Unpack[JobOptions],
) -> str:
    """Do the same as `enqueue` with a cursor of the caller."""
    if not re.fullmatch(r"[A-Za-z0-9_$]+(\.[A-Za-z0-9_$]+)?", table):
        raise ValueError("the table is a name, or the names of a database and a table with a dot in between")
    given = {**options, **({"trace": {"traceparent": traceparent}} if traceparent is not None else {})}
    row: Dict[str, Any] = checked(given)
    queue, execute_at = row.pop("queue", None), row.pop("execute_at", None)
    if execute_at is not None and "delay_ms" in row:
        # The server would reject the row after the COMMIT, and there would be no job.
        raise ValueError("give execute_at or delay_ms, not both")
    if execute_at is not None:
        moment: datetime = _json.parse_time(execute_at)
        if moment.tzinfo is None:
            raise ValueError("execute_at has no time zone")
        moment = _json.whole_milliseconds(moment.astimezone(timezone.utc))
        execute_at = moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    text = _json.encode({} if payload is None else payload)
    if len(text) > MAX_PAYLOAD_BYTES:
        raise PayloadError(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes, this one has {len(text)}")
    job = UUID(id) if id is not None else uuid7()
    if job.version != 7:
        raise ValueError("the id of a job is a UUIDv7: make it with new_id")
    # The id goes as hexadecimal text, because drivers differ in how they send bytes.
    statement = (
        f"INSERT INTO {table} (id, kind, payload, queue, execute_at, options) VALUES (UNHEX(%s), %s, %s, %s, %s, %s)"
    )
    options_text = _json.encode(row).decode() if row else None
    cursor.execute(statement, (job.hex, _name(kind), text.decode(), queue, execute_at, options_text))
    return str(job)

"""Jobs in the transaction of Django, by the table `tickr_outbox` in its database."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, List, Optional

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from .. import outbox
from ..client import Client, KindName
from ..errors import TickrError
from ..options import JobOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("tickr.django")


@cache
def shared_client(url: Any, token: Optional[str], timeout: float) -> Client:
    """Return the client of all threads with these settings, so that they share its connections."""
    return Client(url, token, timeout=timeout)


def enqueue_in_transaction(
    kind: KindName,
    payload: Any = None,
    *,
    using: str = DEFAULT_DB_ALIAS,
    id: Optional[str] = None,
    table: str = outbox.DEFAULT_TABLE,
    nudge: Optional[Client] = None,
    **options: Unpack[JobOptions],
) -> str:
    """Enqueue a job that exists exactly if the transaction of Django is committed, and return its id.

    Call it within `transaction.atomic()`; without a transaction the row is committed at once. `using` is the alias of a
    MySQL or MariaDB database that has the table. With `nudge`, that client lets the job start at once after the COMMIT,
    with one call for all jobs of a transaction.
    """
    connection = connections[using]
    if connection.vendor != "mysql":
        raise ImproperlyConfigured(f"the database {using!r} is {connection.vendor}: the outbox is a table of MySQL")
    with connection.cursor() as cursor:
        id = outbox.enqueue_with_cursor(cursor, kind, payload, id=id, table=table, **options)
    if nudge is not None:
        nudge_after_commit(nudge, using)
    return id


class _Nudge:
    """Nudges after a COMMIT, unless another one of the same transaction has done so."""

    def __init__(self, client: Client, done: List[bool]):
        self.client = client
        self.done = done

    def __call__(self) -> None:
        if self.done:
            return
        self.done.append(True)
        try:
            self.client.nudge()
        except TickrError as error:
            # The row is committed, so a runner finds it within a second at most. The request of a user must not fail.
            log.warning("cannot nudge: %s", error)


def nudge_after_commit(client: Client, using: str) -> None:
    """Let a client nudge once after the COMMIT of the transaction, however often this is called in it."""
    waiting = (hook[1] for hook in reversed(connections[using].run_on_commit))
    others = (hook for hook in waiting if isinstance(hook, _Nudge) and hook.client is client)
    other = next(others, None)
    # Each job has a nudge of its own, because the rollback of a savepoint forgets those within it.
    transaction.on_commit(_Nudge(client, [] if other is None else other.done), using=using)

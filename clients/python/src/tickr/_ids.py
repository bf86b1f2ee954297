"""UUIDs of version 7, which Python has only since 3.14."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_newest = 0


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent may hold the lock during a fork. It would stay locked in the child.
    os.register_at_fork(after_in_child=_renew_lock)


def uuid7() -> UUID:
    """Make a UUIDv7. Within one process, each one sorts behind those before it.

    Jobs with one order key that are committed together run in the order of their ids, so ids of one millisecond must
    be in order as well: the 12 bits behind the milliseconds are a fraction of it, and one more if it has not passed.
    """
    global _newest
    with _lock:
        now = time.time_ns() * 4096 // 1_000_000  # milliseconds and 12 bits of their fraction
        _newest = max(now, _newest + 1)
        tick = _newest
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    number = (tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | random
    return UUID(int=number)

"""Ids of savepoints: the time at which a savepoint began, and a random part."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

_ID_TIME = "%Y%m%dT%H%M%S"
_CLOCKS_MS = 3_600_000


def new_savepoint_id(now_ms: int) -> str:
    """Return an id that no other savepoint has. The order of ids is the order of time."""
    return f"{datetime.fromtimestamp(now_ms // 1000, UTC):{_ID_TIME}}-{secrets.token_hex(3)}"


def begun_ms(savepoint_id: str) -> int | None:
    """Return when a savepoint was begun, in epoch milliseconds, to the second.

    Returns None if the text is not a savepoint's id.
    """
    try:
        return int(datetime.strptime(savepoint_id.partition("-")[0], _ID_TIME).replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        return None


def is_ahead(savepoint_id: str, now_ms: int) -> bool:
    """Return whether a savepoint has a time of more than an hour from now. A clock that was ahead has given it its id.

    Such an id says nothing about the order of time, so the savepoint may not count as newer than others.
    """
    return (begun_ms(savepoint_id) or 0) > now_ms + _CLOCKS_MS

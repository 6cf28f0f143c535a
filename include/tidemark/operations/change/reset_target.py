"""Where a reset moves the offsets to, and what happens to the state: the choices of an operator."""

from __future__ import annotations

from enum import StrEnum


class ResetTo(StrEnum):
    """The target of a reset. TIME: to the first record whose Kafka timestamp is not older; OFFSETS: to the given ones."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIME = "time"


class StateAfter(StrEnum):
    """The effect on the stores: they stay as they are, or begin again, empty."""

    KEEP = "keep"
    EMPTY = "empty"

"""The cases: which topics each reads, and what of its output is compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PARTITIONS = 4
SIZE_MS = 60_000
ADVANCE_MS = 20_000
GRACE_MS = 5_000
GAP_MS = 30_000
APART_MS = 60_000
JOIN_GRACE_MS = 10_000


class Compared(Enum):
    """What the records of an output topic are reduced to."""

    LAST_PER_WINDOW = "last value per key and window"
    SESSIONS = "last value per key and session, without sessions that lie inside another"
    LAST_PER_KEY = "last value per key, deleted ones left out"
    ALL = "every record, with how often it is there"


@dataclass(frozen=True)
class Case:
    """`roles` are its input topics, as the Java program and the topology name them."""

    name: str
    roles: tuple[str, ...]
    compared: Compared

    @property
    def topology(self) -> str:
        """The module in `tests/peers/topologies`."""
        return f"peers_{self.name.replace('-', '_')}"

    @property
    def application_id(self) -> str:
        """What the topology must name its application."""
        return f"peers-{self.name}"

    def input(self, role: str) -> str:
        """The topic that the topology must read in this role."""
        return f"peers-{self.name}-{role}"

    @property
    def output(self) -> str:
        """The topic that the topology must write."""
        return f"peers-{self.name}-out"


CASES = {
    case.name: case
    for case in (
        Case("tumbling", ("in",), Compared.LAST_PER_WINDOW),
        Case("hopping", ("in",), Compared.LAST_PER_WINDOW),
        Case("session", ("in",), Compared.SESSIONS),
        Case("suppress", ("in",), Compared.ALL),
        Case("stream-stream", ("left", "right"), Compared.ALL),
        Case("stream-stream-left", ("left", "right"), Compared.ALL),
        Case("stream-table", ("stream", "table"), Compared.ALL),
        Case("tombstone", ("stream", "table"), Compared.ALL),
        Case("table-table", ("left", "right"), Compared.LAST_PER_KEY),
        Case("table", ("in",), Compared.LAST_PER_KEY),
    )
}

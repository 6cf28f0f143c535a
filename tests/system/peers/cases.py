"""The cases: which topics each reads, and what of its output is compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PARTITIONS = 4
SIZE_MS = 60_000
ADVANCE_MS = 20_000
GRACE_MS = 5_000
GAP_MS = 30_000
DIFFERENCE_MS = 20_000
APART_MS = 60_000
JOIN_GRACE_MS = 10_000
GROUPS = 499
MAX_ENTRIES = 60
TTL_MS = 50 * 60_000

WINDOW = ("window_start", "window_end", "count")
PAIR = ("lv", "rv")


class Compared(Enum):
    """What the records of an output topic are reduced to. Their timestamps always belong to it."""

    LAST_PER_WINDOW = "last value per key and window"
    SESSIONS = "last value per key and session, without sessions that lie inside another"
    LAST_PER_KEY = "last value per key, deleted ones left out"
    ALL = "every record, with how often it is there"


@dataclass(frozen=True)
class Case:
    """One topology. `roles` are its input topics, as the Java program and the topology name them.

    `fields` are the columns of its output besides `id`. `rekeyed` are its repartition topics, by the names that it gives
    them. `extra_outputs` are written and not compared. Tidemark takes at most `max_batch_records`, where the case says so.
    """

    name: str
    roles: tuple[str, ...]
    compared: Compared
    fields: tuple[str, ...]
    rekeyed: tuple[str, ...] = ()
    extra_outputs: tuple[str, ...] = ()
    max_batch_records: int | None = None

    @property
    def topology(self) -> str:
        """The module in `tests/system/peers/topologies`."""
        return f"peers_{self.name.replace('-', '_')}"

    @property
    def application_id(self) -> str:
        """The application id that the topology must have."""
        return f"peers-{self.name}"

    def input(self, role: str) -> str:
        """The topic that the topology must read in this role."""
        return self.topic(role)

    @property
    def output(self) -> str:
        """The topic that the topology must write."""
        return self.topic("out")

    def topic(self, name: str) -> str:
        """Any other topic of the case."""
        return f"peers-{self.name}-{name}"

    def batch_records(self, given: int) -> int:
        """The most records that Tidemark may take in one batch: the case's own number, or the given one."""
        return self.max_batch_records or given


CASES = {
    case.name: case
    for case in (
        Case("tumbling", ("in",), Compared.LAST_PER_WINDOW, WINDOW),
        Case("hopping", ("in",), Compared.LAST_PER_WINDOW, WINDOW),
        Case("sliding", ("in",), Compared.LAST_PER_WINDOW, WINDOW),
        Case("session", ("in",), Compared.SESSIONS, WINDOW),
        Case("suppress", ("in",), Compared.ALL, WINDOW),
        Case(
            "backlog",
            ("stream", "table"),
            Compared.LAST_PER_WINDOW,
            WINDOW,
            extra_outputs=("joined",),
            max_batch_records=1000,
        ),
        Case("rekey", ("in",), Compared.LAST_PER_KEY, ("count",), rekeyed=("by-group",)),
        Case("stream-stream", ("left", "right"), Compared.ALL, PAIR),
        Case("stream-stream-left", ("left", "right"), Compared.ALL, PAIR),
        Case("stream-stream-outer", ("left", "right"), Compared.ALL, PAIR),
        Case("stream-table", ("stream", "table"), Compared.ALL, PAIR),
        Case("stream-table-left", ("stream", "table"), Compared.ALL, PAIR),
        Case("table", ("in",), Compared.LAST_PER_KEY, ("v",)),
        Case("table-table", ("left", "right"), Compared.LAST_PER_KEY, PAIR),
        Case("table-table-left", ("left", "right"), Compared.LAST_PER_KEY, PAIR),
        Case("table-table-outer", ("left", "right"), Compared.LAST_PER_KEY, PAIR),
        Case("lru", ("in",), Compared.ALL, PAIR),
        Case("ttl", ("in",), Compared.ALL, PAIR),
    )
}

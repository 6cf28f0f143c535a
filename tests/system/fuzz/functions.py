"""The Python functions and processors of drawn topologies; `FuzzServer.java` has a twin of each.

`Counter_7` is a `Counter` with the store `s7`, `Ticker_7_10` a `Ticker` with it every 10 ms: a processor is given by import
path, and is to know its store.
"""

from __future__ import annotations

from typing import Any

from tidemark.processors import Context, Processor, Punctuate, Record

Row = dict[str, Any]


def total(row: Row | None) -> int:
    """The sum of the row's whole numbers. In windows a fold is given null values, too."""
    return sum(value for value in (row or {}).values() if isinstance(value, int))


def add_up(old: Row, row: Row | None) -> Row:
    """Whole numbers are added, everything else is the new row's; without one the old row stays."""
    if row is None:
        return old
    return {
        name: value + old[name] if isinstance(value, int) and isinstance(old[name], int) else value
        for name, value in row.items()
    }


def larger(old: Row, row: Row | None) -> Row | None:
    """The row with the larger total; the old one where they are equal."""
    return row if total(row) > total(old) else old


def toggle(old: Row, row: Row | None) -> Row | None:
    """The new row, or a deletion where the totals are equal."""
    return None if total(row) == total(old) else row


def start() -> Row:
    """What a fold begins with."""
    return {"folded": 0, "last": None}


def tally(key: str, row: Row | None, aggregate: Row) -> Row:
    """How many rows there were, and the last one's total."""
    return {"folded": aggregate["folded"] + 1, "last": total(row)}


def tally_to_two(key: str, row: Row | None, aggregate: Row) -> Row | None:
    """As `tally`; the third row deletes."""
    return None if aggregate["folded"] == 2 else tally(key, row, aggregate)


class Counter(Processor):
    """Counts the records of each key since its last deletion, and forwards the count."""

    name = ""

    def init(self, context: Context) -> None:
        self.context = context
        self.store = context.store(self.name)

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.context.forward(record.key, self.counted(record))

    def counted(self, record: Record) -> Row | None:
        """The new count, kept; None for a deletion."""
        if record.row is None:
            self.store.delete(record.key)
            return None
        old = self.store.get(record.key)
        row = {"seen": (old["seen"] if old else 0) + 1, "added": total(record.row)}
        self.store.put(record.key, row)
        return row


class Ticker(Counter):
    """Counts, and forwards all counts whenever stream time passes a multiple of `every_ms`."""

    every_ms = 0

    def init(self, context: Context) -> None:
        super().init(context)
        context.schedule(self.every_ms, Punctuate.STREAM_TIME, self.tell)

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.counted(record)

    def tell(self, now_ms: int) -> None:
        """Forward every count with the multiple's time."""
        at_ms = now_ms // self.every_ms * self.every_ms
        for key, row in list(self.store.range()):
            self.context.forward(key, row, at_ms)


def __getattr__(name: str) -> type[Processor]:
    kind, _, rest = name.partition("_")
    if kind == "Counter" and rest:
        return type(name, (Counter,), {"name": f"s{rest}"})
    if kind == "Ticker" and rest:
        place, _, every = rest.partition("_")
        return type(name, (Ticker,), {"name": f"s{place}", "every_ms": int(every)})
    raise AttributeError(name)

"""The processor of the topology `chaos`: a running total per key. It raises for values that no event has."""

from __future__ import annotations

from tidemark.processors import Context, Processor, Record

REFUSED = 1_000_000_000_000


class Totals(Processor):
    def init(self, context: Context) -> None:
        self.context = context
        self.totals = context.store("totals")

    def process(self, record: Record) -> None:
        row = record.row or {}
        known = self.totals.get(record.key) or {"total": 0}
        total = known["total"] + row["v"]
        self.totals.put(record.key, {"total": total})
        if row["v"] >= REFUSED:
            raise ValueError(f"{record.key}: {row['v']}")
        self.context.forward(record.key, {"id": record.key, "total": total})

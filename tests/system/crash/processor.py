"""The processor of `crash_nodes`: two running totals per key, in a store that forgets by age and in one that does by number.

It refuses one value of v, when it has changed one of its stores for it.
"""

from __future__ import annotations

from tidemark.processors import Context, Processor, Record

_REFUSED = 13


class Totals(Processor):
    def init(self, context: Context) -> None:
        self.context = context
        self.stores = [context.store("totals"), context.store("recent")]

    def process(self, record: Record) -> None:
        row = record.row or {}
        sums = []
        for kept in self.stores:
            known = kept.get(record.key) or {"total": 0}
            sums.append(known["total"] + row["v"])
            kept.put(record.key, {"total": sums[-1]})
            if row["v"] == _REFUSED:
                raise ValueError(f"{record.key}: {_REFUSED}")
        self.context.forward(record.key, {"id": record.key, "total": sums[0], "recent": sums[1]})

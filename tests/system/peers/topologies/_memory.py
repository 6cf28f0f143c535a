"""The processor of the stores that forget, and the topology around it."""

from __future__ import annotations

from topologies._sources import events

from tidemark.processors import Context, Processor, Record
from tidemark.topology.builder import Topology
from tidemark.topology.stores import store


class Memory(Processor):
    """Answers a question, a record whose `v` is below 0, with what its key has in the store."""

    def init(self, context: Context) -> None:
        """Keep the store."""
        self._context = context
        self._store = context.store("memory")

    def process(self, record: Record) -> None:
        """Write, or ask."""
        assert record.row is not None
        v = record.row["v"]
        if v >= 0:
            self._store.put(record.key, {"v": v})
            return
        known = self._store.get(record.key)
        answer = {"id": record.key, "lv": v, "rv": known["v"] if known else None}
        self._context.forward(record.key, answer)


def answers(name: str, **forgets: object) -> Topology:
    """A topology that asks a store; `forgets` as in `Materialized`."""
    topology = Topology(f"peers-{name}")
    events(topology, f"peers-{name}-in").process(
        "topologies._memory:Memory",
        emits="id STRING, lv INT, rv INT",
        stores=[store("memory", "v INT", **forgets)],
    ).to(f"peers-{name}-out")
    return topology

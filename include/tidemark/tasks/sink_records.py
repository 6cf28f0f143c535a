"""The records for the sinks of a sub-topology, and their order in a topic that several paths write.

Kafka Streams passes a record down every path before it takes the next one. A topic that several paths write therefore receives
the results by record first, then by path, so that the last value of a key does not depend on where batches end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidemark.kafka.messages import Message
from tidemark.tasks.forks import record_of
from tidemark.tasks.operators.columns import Numbers
from tidemark.tasks.order import Origins
from tidemark.topology.paths import Path
from tidemark.topology.plan import Sink, SubTopology

ValueWriter = Callable[[bytes], bytes]
"""Returns a value, given as JSON, in the form in which a sink writes it. Raises `ValueError` for one that has no such form."""


@dataclass(frozen=True)
class SinkRecords:
    """The records for one sink, the `__seq` of each record's row, and by source the path that leads to the sink."""

    sink: Sink
    messages: Sequence[Message]
    sequence: Numbers
    paths: Mapping[int, Path]


def shared_topics(subtopology: SubTopology) -> frozenset[str]:
    """Return the topics that more than one path of the sub-topology writes."""
    counts = Counter(sink.topic for sink in subtopology.sinks)
    return frozenset(topic for topic, count in counts.items() if count > 1)


def merged_order(written: Sequence[SinkRecords], origins: Origins) -> Numbers:
    """Return the order of all records for one topic, as indexes into the records of `written` one after the other.

    They are ordered by the record from which they come, then by path. Results of one record on one path keep their order.
    """
    positions = np.concatenate([record_of(found.sequence) for found in written])
    numbered = np.repeat(np.arange(len(written)), [len(found.messages) for found in written])
    sources = origins.sources(positions)
    ranks = np.zeros_like(positions)
    for source in np.unique(sources).tolist():
        walked = sorted(range(len(written)), key=lambda number: written[number].paths.get(source, ()))
        of_source = sources == source
        ranks[of_source] = np.argsort(walked)[numbered[of_source]]
    order: Numbers = np.lexsort((ranks, positions))
    return order

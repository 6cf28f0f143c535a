"""What a node of the task loop does with a batch. One module in `tasks/nodes/` per kind of node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.stores.pending import PendingStore
from tidemark.tasks.refused import RefusedRow
from tidemark.tasks.rows import Rows


@dataclass(frozen=True)
class BatchTime:
    """Times of one node in one batch, epoch milliseconds; `NO_STREAM_TIME` before the first record.

    `before_ms` is the node's stream time at the batch's start: what is late is judged against it (rule 3). `after_ms` is
    its stream time with the rows of this batch that have reached it: windows close by it (rule 2). `wall_ms` is the
    clock. A processor has the task's stream times instead. `marks_ms` is what the last commit has of `Emitted.marks_ms`.
    """

    before_ms: int
    after_ms: int
    wall_ms: int
    marks_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Emitted:
    """What a node gives to the nodes behind it, in the order of `__seq`; `late_rows` were dropped as too late.

    `marks_ms` are times that belong to single stores of the node, by the store's name: they are committed beside the
    node's stream time and take the place of those before. Those of a window store say how far its segments are dropped.
    `refused` are rows for which a user's code raised: nothing that it did for them is left.
    """

    rows: Rows
    late_rows: int = 0
    marks_ms: Mapping[str, int] = field(default_factory=dict)
    refused: Sequence[RefusedRow] = ()


class Operator(Protocol):
    """One node of one task. Holds nothing from one batch to the next: all state is in `stores`."""

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Process one batch; `inputs` are in the order of the node's inputs.

        Called for every batch and every tick, also with nothing in `inputs`: time may have passed.
        """

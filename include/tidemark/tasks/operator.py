"""The operator protocol: how one node of the task loop processes a batch. `tasks/operators` has a module per kind of node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.stores.pending import PendingStore
from tidemark.tasks.refused_rows import RefusedRow
from tidemark.tasks.rows import Rows


@dataclass(frozen=True)
class BatchTime:
    """Times of one node in one batch, in epoch milliseconds; `NO_STREAM_TIME` before the first record.

    `before_ms` is the node's stream time at the start of the batch, against which rows are judged late (see invariant: late
    rows). `after_ms` is its stream time including the rows of this batch that have reached it, by which windows close (see
    invariant: stream time per node). `wall_ms` is the clock. A processor has the stream times of the task instead, and
    `last_position`, the position of the batch's last record, after which its callbacks come. `marks_ms` are the
    `Emitted.marks_ms` of the last commit.
    """

    before_ms: int
    after_ms: int
    wall_ms: int
    marks_ms: Mapping[str, int] = field(default_factory=dict)
    last_position: int = 0


@dataclass(frozen=True)
class Emitted:
    """Output of a node for the nodes downstream, in the order of `__seq`. `late_rows` is the number of rows dropped as late.

    `marks_ms` are times of single stores of the node, by the store's name. They are committed beside the node's stream time
    and replace earlier ones. The mark of a window store determines which of its segments are dropped. `refused` are rows for
    which user code raised; everything that it did for them is undone.
    """

    rows: Rows
    late_rows: int = 0
    marks_ms: Mapping[str, int] = field(default_factory=dict)
    refused: Sequence[RefusedRow] = ()


class Operator(Protocol):
    """One node of one task. It keeps nothing from one batch to the next: all state is in `stores`."""

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Process one batch. `inputs` are in the order of the node's inputs.

        Called for every batch and every tick, also with empty `inputs`, because time may have passed.
        """

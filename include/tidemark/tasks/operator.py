"""What a node of the task loop does with a batch. One module in `tasks/nodes/` per kind of node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemark.stores.pending import PendingStore
from tidemark.tasks.rows import Rows


@dataclass(frozen=True)
class BatchTime:
    """Times of one batch, epoch milliseconds; `NO_STREAM_TIME` before the first record.

    `before_ms` is the stream time at the batch's start: what is late is judged against it (rule 3). `after_ms` is the
    stream time once the batch is committed: windows close by it (rule 2). `wall_ms` is the clock.
    """

    before_ms: int
    after_ms: int
    wall_ms: int


@dataclass(frozen=True)
class Emitted:
    """What a node gives to the nodes behind it, in the order of `__seq`; `late_rows` were dropped as too late."""

    rows: Rows
    late_rows: int = 0


class Operator(Protocol):
    """One node of one task. Holds nothing from one batch to the next: all state is in `stores`."""

    def run(self, inputs: Sequence[Rows], stores: Mapping[str, PendingStore], at: BatchTime) -> Emitted:
        """Process one batch; `inputs` are in the order of the node's inputs.

        Called for every batch and every tick, also with nothing in `inputs`: time may have passed.
        """

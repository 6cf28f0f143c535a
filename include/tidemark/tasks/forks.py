"""Numbers of results after which paths separate and meet again; see `tidemark.topology.paths`.

Of two results of one record, the first reaches a join on both paths before the second does. `__seq`, the position of the
record, is the same for all of them. So the results of a fork are numbered: `__seq` then contains the record's position and the
result's number, and `record_of` extracts the position. A node compares its inputs by the forks that their rows have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemark.tasks.operators.columns import Numbers, in_sequence, numbers, with_sequence
from tidemark.tasks.rows import SEQUENCE, Rows
from tidemark.topology.paths import RecordPaths
from tidemark.topology.plan import TaskNode

_BITS = 32
_NUMBERS = (1 << _BITS) - 1
"""Low bits of `__seq` for the result's number, from 1. If numbered, the bits above hold the record's position plus one."""


def record_of(sequence: Numbers) -> Numbers:
    """Return the positions of the records, whether or not results are numbered."""
    places: Numbers = np.where(sequence > _NUMBERS, (sequence >> _BITS) - 1, sequence)
    return places


def after_batch(last: int, last_position: int) -> int:
    """Return the `__seq` of a callback: after all results of the processor's `last` row, and after the batch's last record.

    Its position is even and so that of no record: a row that a callback forwarded comes from no record.
    """
    is_numbered = last > _NUMBERS
    place = max((last >> _BITS) - 1 if is_numbered else last, last_position)
    after = (place | 1) + 1
    return (after + 1) << _BITS if is_numbered else after


class ForkNumbers:
    """Assigns numbers to the results of one batch."""

    def __init__(self, paths: RecordPaths) -> None:
        self._paths = paths
        self._next = 1
        self._before: dict[str, tuple[int, Numbers]] = {}
        """By fork, its first number, and the `__seq` of each result before it was numbered."""

    def left(self, node: str, rows: Rows) -> Rows:
        """Return the output of a node, numbered if the node is a fork."""
        if node not in self._paths.forks:
            return rows
        rows = in_sequence(rows)
        before = numbers(rows, SEQUENCE)
        own = self._next + np.arange(len(before))
        self._before[node] = self._next, before
        self._next += len(before)
        return with_sequence(rows, ((record_of(before) + 1) << _BITS) + own)

    def compared(self, node: TaskNode, inputs: Sequence[Rows]) -> list[Rows]:
        """Return a node's inputs, numbered only by the forks that it compares."""
        forks = self._paths.compared_by(node)
        return [self._by(forks, rows) if self._before and rows.num_rows else rows for rows in inputs]

    def _by(self, forks: frozenset[str], rows: Rows) -> Rows:
        sequence = numbers(rows, SEQUENCE).copy()
        for fork, (first, before) in reversed(self._before.items()):
            if fork not in forks:
                number = (sequence & _NUMBERS) - first
                is_own = (sequence > _NUMBERS) & (number >= 0) & (number < len(before))
                sequence[is_own] = before[number[is_own]]
        if not forks:
            return with_sequence(rows, record_of(sequence))
        # Rows that passed no fork, and rows from a callback, come before the results of their record.
        return with_sequence(rows, np.where(sequence > _NUMBERS, sequence, (sequence + 1) << _BITS))

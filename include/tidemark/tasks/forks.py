"""The numbers of results behind which roads part and meet again; see `tidemark.topology.roads`.

Of two results of one record, both roads of the first come to the join before those of the second. `__seq`, the place of the
record, is the same for all of them. So the results of a fork are numbered: `__seq` is then the record's place and the
result's number, and `record_of` tells the place. A node compares its inputs by the forks that their rows have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemark.tasks.nodes.columns import Numbers, in_sequence, numbers, with_sequence
from tidemark.tasks.rows import SEQUENCE, Rows
from tidemark.topology.plan import TaskNode
from tidemark.topology.roads import Roads

_BITS = 32
_NUMBERS = (1 << _BITS) - 1
"""A numbered `__seq` has one more than the record's place above these bits, and in them the result's number, from 1 on."""


def record_of(sequence: Numbers) -> Numbers:
    """The places of the records, whether or not results are numbered."""
    places: Numbers = np.where(sequence > _NUMBERS, (sequence >> _BITS) - 1, sequence)
    return places


def behind(sequence: int) -> int:
    """The first `__seq` behind all results of that record."""
    return sequence + 1 if sequence <= _NUMBERS else ((sequence >> _BITS) + 1) << _BITS


class ForkNumbers:
    """The numbers that the results of one batch are given."""

    def __init__(self, roads: Roads) -> None:
        self._roads = roads
        self._next = 1
        self._before: dict[str, tuple[int, Numbers]] = {}
        """By fork, its first number, and the `__seq` that each result had before it was numbered."""

    def left(self, node: str, rows: Rows) -> Rows:
        """What a node has given, numbered if it is a fork."""
        if node not in self._roads.forks:
            return rows
        rows = in_sequence(rows)
        before = numbers(rows, SEQUENCE)
        own = self._next + np.arange(len(before))
        self._before[node] = self._next, before
        self._next += len(before)
        return with_sequence(rows, ((record_of(before) + 1) << _BITS) + own)

    def compared(self, node: TaskNode, inputs: Sequence[Rows]) -> list[Rows]:
        """A node's inputs, by the numbers of those forks that it compares by."""
        forks = self._roads.compared_by(node)
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
        # What passed no fork, and what a callback gave, comes before the results of its record.
        return with_sequence(rows, np.where(sequence > _NUMBERS, sequence, (sequence + 1) << _BITS))

"""Where roads part behind a node and meet again in a join: the rows of one record are told apart there.

Kafka Streams takes each result of a node down every road before the next: of two results of one record, both of the first
come to the join before any of the second. `__seq`, the place of the record, is the same for all of them. So the results of
such a node are numbered: `__seq` is then the record's place and the result's number, and `record_of` tells the place. A node
that reads from several forks sees the numbers of the last one that its inputs have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.tasks.rows import SEQUENCE, Rows
from tidemark.topology.plan import SubTopology

Numbers = npt.NDArray[np.int64]

_BITS = 32
_NUMBERS = (1 << _BITS) - 1
"""A numbered `__seq` has the record's place, and one, above these bits and the result's number, from 1 on, in them."""


def record_of(sequence: Numbers) -> Numbers:
    """The places of the records, whether or not results are numbered."""
    places: Numbers = np.where(sequence > _NUMBERS, (sequence >> _BITS) - 1, sequence)
    return places


def behind(sequence: int) -> int:
    """The first `__seq` behind all results of that record."""
    return sequence + 1 if sequence <= _NUMBERS else ((sequence >> _BITS) + 1) << _BITS


class Forks:
    """The forks of one sub-topology. Holds no state."""

    def __init__(self, subtopology: SubTopology) -> None:
        above: dict[str, frozenset[str]] = {a.node: frozenset([a.node]) for a in subtopology.aggregations}
        forks: set[str] = set()
        for node in subtopology.nodes:
            found = [above.get(name, frozenset()) for name in node.inputs]
            forks |= found[0].intersection(*found[1:]) if len(found) > 1 else set()
            above[node.node] = frozenset([node.node]).union(*found)
        self._forks = frozenset(forks)
        self._passed: dict[str, tuple[str, ...]] = {}
        """By node, the forks that all of its rows have passed, itself included."""
        for name in (a.node for a in subtopology.aggregations):
            self._passed[name] = self._with(name, ())
        for node in subtopology.nodes:
            self._passed[node.node] = self._with(node.node, _common([self._of(name) for name in node.inputs]))

    def walk(self) -> Walk:
        """For one batch."""
        return Walk(self._forks, self._passed)

    def _of(self, node: str) -> tuple[str, ...]:
        return self._passed.get(node, ())

    def _with(self, node: str, passed: tuple[str, ...]) -> tuple[str, ...]:
        return (*passed, node) if node in self._forks else passed


class Walk:
    """The numbers that a batch's results have been given."""

    def __init__(self, forks: frozenset[str], passed: Mapping[str, tuple[str, ...]]) -> None:
        self._forks = forks
        self._passed = passed
        self._before: dict[str, Numbers] = {}
        """By fork, the `__seq` of each result before it was numbered; what has no number stays."""

    def left(self, node: str, rows: Rows) -> Rows:
        """What a node has given, numbered if roads part behind it."""
        if node not in self._forks:
            return rows
        sequence: Numbers = rows.column(SEQUENCE).to_numpy()
        order = np.argsort(sequence, kind="stable")
        before = sequence[order]
        self._before[node] = before
        numbered = ((record_of(before) + 1) << _BITS) + np.arange(1, len(before) + 1)
        return _with_sequence(rows.take(pa.array(order)), numbered)

    def meeting(self, names: Sequence[str], inputs: Sequence[Rows]) -> list[Rows]:
        """A node's inputs, by the numbers of the last fork that all of them have passed."""
        passed = [self._passed.get(name, ()) for name in names]
        shared = len(_common(passed))
        return [self._back(rows, forks[shared:]) for rows, forks in zip(inputs, passed, strict=True)]

    def _back(self, rows: Rows, forks: Sequence[str]) -> Rows:
        if not forks or not rows.num_rows:
            return rows
        sequence: Numbers = rows.column(SEQUENCE).to_numpy()
        for fork in reversed(forks):
            numbers = sequence & _NUMBERS
            # What a callback gives belongs to no result: it comes behind all of the record's.
            is_numbered = (sequence > _NUMBERS) & (numbers > 0)
            known = np.append(self._before[fork], 0)
            sequence = np.where(is_numbered, known[np.where(is_numbered, numbers - 1, -1)], record_of(sequence))
        return _with_sequence(rows, sequence)


def _common(passed: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    shortest = min(passed, key=len, default=())
    for length in range(len(shortest), 0, -1):
        if all(forks[:length] == shortest[:length] for forks in passed):
            return shortest[:length]
    return ()


def _with_sequence(rows: Rows, sequence: Numbers) -> Rows:
    return rows.set_column(rows.schema.get_field_index(SEQUENCE), SEQUENCE, pa.array(sequence, pa.int64()))

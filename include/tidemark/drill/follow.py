"""Rebuilt tasks that follow the running application's changelogs, as a standby would, up to a second savepoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidemark.drill.rebuild import Built, DrillRebuilder, SavedState

_LOOK_S = 0.5

Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""The function that does something for every item, several at a time."""


class DrillFollower:
    """Follows the changelogs with the stores that were built as `kind` up to `states`."""

    def __init__(self, rebuilder: DrillRebuilder, kind: str, states: Sequence[SavedState], each: Each) -> None:
        self._rebuilder = rebuilder
        self._kind = kind
        self._states = list(states)
        self._each = each
        self._next = {state.name: state.copy.checkpoint.changelog_offset for state in states}
        self._level_ms = {state.name: state.taken_ms for state in states}
        self._records = dict.fromkeys(self._next, 0)
        self._seconds = dict.fromkeys(self._next, 0.0)

    def run(self, batches: int, timeout_s: float) -> int:
        """Follow until the application has committed so many batches over all tasks. Returns how many there were. Blocks.

        Each end is read before the second savepoint is taken, so no store gets ahead of the savepoint: what is
        committed below the end is in it, and what is aborted is not read.
        """
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while True:
            done = self._round()
            if done >= batches or time.monotonic() > deadline:
                return done
            pause.wait(_LOOK_S)

    def _round(self) -> int:
        """Read every store up to its present end. Returns the number of batches committed since the first savepoint."""
        context = self._rebuilder.context
        asked_ms, facts = context.clients.clock(), context.evidence.current_offsets()
        moving = [state for state in self._states if state.spec.source_topic is None]

        def read(state: SavedState) -> None:
            changelog = facts[state.task].changelogs[state.spec.name]
            self._read(state, changelog.low, changelog.end)
            self._level_ms[state.name] = asked_ms

        self._each(read, moving)
        stood = {state.task: state.copy.checkpoint.batch for state in self._states}
        records = {task: facts[task].record for task in stood}
        return sum(max(0, record.batch - stood[task]) for task, record in records.items() if record is not None)

    def finish(self, states: Sequence[SavedState]) -> list[tuple[SavedState, Built]]:
        """Follow up to the offsets of `states`, which are of the second savepoint."""
        context = self._rebuilder.context
        facts = context.evidence.current_offsets()
        begun = {state.name: state.copy.checkpoint.changelog_offset for state in self._states}

        def last(state: SavedState) -> tuple[SavedState, Built]:
            end_offset = state.copy.checkpoint.changelog_offset
            self._read(state, facts[state.task].changelogs[state.spec.name].low, end_offset)
            built = Built(
                begun[state.name],
                end_offset,
                self._records[state.name],
                self._seconds[state.name],
                context.clients.clock(),
            )
            return state, built

        return self._each(last, states)

    def _read(self, state: SavedState, low_offset: int, end_offset: int) -> None:
        """Read a part of a changelog. Records that were deleted before are missing in the comparison."""
        started = time.monotonic()
        from_offset = max(self._next[state.name], low_offset)
        since_ms = self._level_ms[state.name]
        self._records[state.name] += self._rebuilder.follow(self._kind, state, from_offset, end_offset, since_ms)
        self._seconds[state.name] += time.monotonic() - started
        self._next[state.name] = max(self._next[state.name], end_offset)

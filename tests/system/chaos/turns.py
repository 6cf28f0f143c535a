"""Chooses which kinds of faults are injected next, and which of them together."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.system.chaos.kinds import KINDS


class Turns:
    """Deals out all kinds in random order, then all of them again, so that each comes as often as the others.

    Of those that come alone, which take long, each deal has one in turn.
    """

    def __init__(self, kinds: Sequence[str], chance: random.Random) -> None:
        self._kinds = [name for name in kinds if not KINDS[name].comes_alone]
        self._alone = [name for name in kinds if KINDS[name].comes_alone]
        self._chance = chance
        self._next: list[str] = []
        self._next_alone: list[str] = []

    def together(self, number: int) -> list[str]:
        """The next kinds, `number` at most, that act on different parts. A kind that is passed over comes next time."""
        waiting = [name for name in self._next if not KINDS[name].comes_alone]
        if not self._next or (
            len({KINDS[name].acts_on for name in waiting}) < number and len(waiting) < len(self._kinds)
        ):
            self._deal()
        if KINDS[self._next[0]].comes_alone:
            return [self._next.pop(0)]
        chosen: dict[str, str] = {}
        for name in self._next:
            if len(chosen) < number and not KINDS[name].comes_alone:
                chosen.setdefault(KINDS[name].acts_on, name)
        for name in chosen.values():
            self._next.remove(name)
        return list(chosen.values())

    def _deal(self) -> None:
        dealt = self._chance.sample(self._kinds, len(self._kinds))
        if self._alone:
            self._next_alone = self._next_alone or self._chance.sample(self._alone, len(self._alone))
            dealt.insert(self._chance.randint(0, len(dealt)), self._next_alone.pop())
        self._next += dealt

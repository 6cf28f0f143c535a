"""The findings of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Findings:
    """What differs, and how many records were looked at."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    records: int = 0
    report: list[str] = field(default_factory=list)
    again: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, partition and offset of statistics and of the queue's elements that came once more."""

    def add(self, kind: str, number: int, text: str) -> None:
        """`number` more of a kind; one line about them."""
        if number:
            setattr(self, kind, getattr(self, kind) + int(number))
            self.report.append(f"{kind}: {number} × {text}")

    def compare(self, name: str, wanted: Counter[Any], there: Counter[Any]) -> None:
        """What must come a number of times each."""
        missing = wanted - there
        self.add("lost", missing.total(), f"{name}: {list(missing)[:3]}")
        again = Counter({one: n - wanted[one] for one, n in there.items() if one in wanted and n > wanted[one]})
        self.add("duplicated", again.total(), f"{name}: {list(again)[:3]}")
        strange = [one for one in there if one not in wanted]
        self.add("wrong", len(strange), f"{name}: follows from nothing: {strange[:3]}")

    def compare_least(self, name: str, wanted: Mapping[Any, Any], came: Iterable[tuple[Any, Any]]) -> None:
        """Numbers that grow by thing, or tuples of them, of which each must in the end be what is wanted at least.

        One that is less, or falls, has lost something; one that is more has something twice.
        """
        newest: dict[Any, Any] = {}
        fallen, strange = [], []
        for thing, number in came:
            if thing not in wanted:
                strange.append(thing)
            elif thing in newest and number < newest[thing]:
                fallen.append((thing, newest[thing], number))
            newest[thing] = number
        self.add("wrong", len(strange), f"{name}: follows from nothing: {strange[:3]}")
        self.add("lost", len(fallen), f"{name}: falls: {fallen[:3]}")
        short = [
            (thing, newest.get(thing), least)
            for thing, least in wanted.items()
            if thing not in newest or newest[thing] < least
        ]
        self.add("lost", len(short), f"{name}: too small: {short[:3]}")
        large = [
            (thing, newest[thing], least)
            for thing, least in wanted.items()
            if thing in newest and newest[thing] > least
        ]
        self.add("duplicated", len(large), f"{name}: too large: {large[:3]}")

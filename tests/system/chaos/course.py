"""The faults of a run, their results, and the report at the end."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from tests.support.truth.topics import Place
from tests.system.chaos.faults import UNHARMED
from tests.system.chaos.findings import Findings
from tests.system.chaos.kinds import KINDS

AT_LEAST_ONCE = "at_least_once"


@dataclass
class Course:
    """What was done, and how long each took to recover from."""

    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    later: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Behind each kind, after the calm: how many seconds of input were not committed."""
    missed: Counter[str] = field(default_factory=Counter)
    """How often a kind found nothing to harm. Such a time counts as no fault."""
    happened: set[str] = field(default_factory=set)
    """The kinds that were brought about once at least, also if the stream did not recover from it."""
    stuck: list[str] = field(default_factory=list)
    rounds: list[tuple[str, dict[Place, int]]] = field(default_factory=list)
    """The kind that came first, and where the ends of the outputs were then."""
    again: Counter[str] = field(default_factory=Counter)
    """Outputs that came once more, by the kind that they came behind."""

    def attribute(self, again: Iterable[tuple[str, int, int]]) -> None:
        """Count each output that came once more with the fault before it, where its topic's ends are known."""
        for topic, partition, offset in again:
            before = [name for name, ends in self.rounds if ends.get((topic, partition), math.inf) <= offset]
            self.again.update(before[-1:])

    @property
    def never_happened(self) -> list[str]:
        """The kinds that were tried and have not happened once."""
        return sorted(self.missed.keys() - self.happened)

    @property
    def faults(self) -> int:
        """How many there were."""
        return sum(map(len, self.recoveries.values())) + len(self.stuck)

    @property
    def kinds(self) -> int:
        """How many different ones."""
        return sum(1 for seconds in self.recoveries.values() if seconds)


def table(course: Course) -> list[str]:
    """One line per kind, in Markdown."""
    lines = ["| fault | times | recovery, median | worst |", "|---|--:|--:|--:|"]
    if course.later:
        lines = [f"{lines[0]} behind the input later, worst |", f"{lines[1]}--:|"]
    for name, seconds in sorted((name, seconds) for name, seconds in course.recoveries.items() if seconds):
        later = f" {max(course.later[name]):.1f} s |" if course.later else ""
        lines.append(f"| {name} | {len(seconds)} | {median(seconds):.1f} s | {max(seconds):.1f} s |{later}")
    return lines


def table_of_held(course: Course) -> list[str]:
    """One line per kind that met a commit which was held, in Markdown: first those that end it."""
    lines = ["| fault | elements that came again | ends no commit, because |", "|---|--:|---|"]
    for name in sorted(course.recoveries, key=lambda name: (name == UNHARMED, bool(KINDS[name].spares), name)):
        lines.append(f"| {name} | {course.again[name]} | {KINDS[name].spares} |")
    return lines


def verdict(course: Course, found: Findings) -> tuple[str, bool]:
    """The last line, and whether all is right. A kind that has not happened, or a run that has fed nothing, shows nothing."""
    line = (
        f"chaos: faults={course.faults} kinds={course.kinds} records={found.records} lost={found.lost} "
        f"duplicated={found.duplicated} wrong={found.wrong} stuck={len(course.stuck)}"
    )
    has_run = course.faults > 0 and found.records > 0 and not course.never_happened
    return line, has_run and not (found.lost or found.duplicated or found.wrong or course.stuck)


def verdict_of_held(course: Course, found: Findings, kinds: Iterable[str]) -> tuple[str, bool]:
    """The last line of a run at least once, and whether nothing was lost and each kind that ends a commit has shown it."""
    classes = [name for name in kinds if not KINDS[name].spares]
    shown = [name for name in classes if course.again[name]]
    line = (
        f"chaos {AT_LEAST_ONCE}: classes={len(classes)} with_duplicates={len(shown)} lost={found.lost} "
        f"wrong={found.wrong} stuck={len(course.stuck)}"
    )
    has_control = not course.again[UNHARMED]
    has_shown = bool(classes) and shown == classes and has_control and not course.never_happened
    return line, has_shown and not (found.lost or found.wrong or course.stuck)

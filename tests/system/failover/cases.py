"""The cases of a failover, and what was measured in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

from bench.pages import table_lines


class Loss(StrEnum):
    """The part of an instance that is lost, as the table names it."""

    PROCESS = "process"
    MACHINE = "process and machine"
    NOTHING = "nothing, an orderly stop"


_NAMES = {
    Loss.PROCESS: "instance killed",
    Loss.MACHINE: "process and machine folder lost",
    Loss.NOTHING: "instance stopped",
}


@dataclass(frozen=True)
class Case:
    """One end of an instance. It is launched again on its machine, or that of a lost machine on the other one.

    If another instance runs, it takes the tasks of a lost machine over, and nothing is launched.
    """

    loss: Loss
    has_standby: bool
    has_other: bool

    def __str__(self) -> str:
        standby = "with a standby" if self.has_standby else "no standby"
        return f"{_NAMES[self.loss]}, {standby}, {'another instance' if self.has_other else 'no other instance'}"

    @property
    def is_launched_again(self) -> bool:
        """Whether the instance is launched again, rather than its tasks taken over."""
        return self.loss is not Loss.MACHINE or not self.has_other

    @property
    def has_peer(self) -> bool:
        """Whether Kafka Streams has this case: its copies are kept by other instances, never by a process of their own."""
        return self.has_other or not self.has_standby


CASES = [Case(*drawn) for drawn in product(Loss, (False, True), (False, True))]


@dataclass
class Queries:
    """The queries from the loss until the end of the case, answered and unanswered.

    `outage_s` is the time from the loss to the last query that was not answered. Keys of other tasks may have been answered
    meanwhile.
    """

    answered: int = 0
    by_standby: int = 0
    unanswered: int = 0
    outage_s: float = 0.0
    examples: list[str] = field(default_factory=list)
    _began_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Count from now on."""
        self.answered = self.by_standby = self.unanswered = 0
        self.outage_s, self._began_s = 0.0, now_s
        self.examples.clear()

    def miss(self, now_s: float) -> None:
        """Count a query that no process answered."""
        self.unanswered += 1
        self.outage_s = now_s - self._began_s

    def __str__(self) -> str:
        if not self.unanswered:
            return f"all {self.answered} ({self.by_standby} by the standby)"
        return f"not {self.unanswered} of {self.unanswered + self.answered}, the last after {self.outage_s:.1f} s"


@dataclass(frozen=True)
class Outcome:
    """The measurements of one case.

    `running_s` is the time until every task is in an instance that is RUNNING again with its state. `commit_s` is the time
    until records that arrived after the loss are committed in every lost task, and `peer_commit_s` the same of Kafka Streams,
    None if it was not measured. `faults` lists the differences from the recomputation, and queries that were not answered in
    time.
    """

    case: Case
    running_s: float
    commit_s: float
    queries: Queries
    faults: tuple[str, ...]
    peer_commit_s: float | None = None

    @property
    def is_exact(self) -> bool:
        return not self.faults


def table(outcomes: list[Outcome], *, has_peer: bool) -> list[str]:
    """Return the table of the report, in Markdown."""
    peer = ["Kafka Streams: first new commit"] if has_peer else []
    head = ["lost", "standby", "other instance", "RUNNING with state", "first new commit", *peer, "queries"]
    return table_lines(head, (_row(outcome, has_peer=has_peer) for outcome in outcomes))


def _row(outcome: Outcome, *, has_peer: bool) -> list[str]:
    case = outcome.case
    peer = "–" if outcome.peer_commit_s is None else f"{outcome.peer_commit_s:.1f} s"
    return [
        case.loss.value,
        _yes(case.has_standby),
        _yes(case.has_other),
        f"{outcome.running_s:.1f} s",
        f"{outcome.commit_s:.1f} s",
        *([peer] if has_peer else []),
        str(outcome.queries),
    ]


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def summary(outcomes: list[Outcome]) -> str:
    """Return the last line of the output."""
    exact = bool(outcomes) and all(outcome.is_exact for outcome in outcomes)
    worst_ms = max((round(outcome.commit_s * 1000) for outcome in outcomes), default=0)
    return f"failover: cases={len(outcomes)} exact={str(exact).lower()} worst_ms={worst_ms}"

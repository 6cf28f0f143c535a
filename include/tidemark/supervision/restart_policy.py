"""Decides what to do when an instance has ended: a pure function of its exit code, its past restarts and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.alerts import AlertKind
from tidemark.errors import ExitCode
from tidemark.supervision.outage_file import RecordedOutage

FINAL_CODES = (ExitCode.REFUSED, ExitCode.USAGE)
"""After these a relaunch would end the same way: the task fails, and a person is needed."""


@dataclass(frozen=True)
class RestartBudget:
    """The limit of relaunches of an instance, and the wait before each of them.

    A relaunch is immediate if the run before it lasted for `settled_s` or was the first one in the window. After n shorter runs
    in a row it waits `backoff_first_s * 2**(n-1)` seconds.
    """

    max_restarts: int = 20
    window_s: float = 3600.0
    backoff_first_s: float = 10.0
    backoff_max_s: float = 120.0
    settled_s: float = 120.0

    def backoff_s(self, short_runs: int) -> float:
        """Return the seconds to wait before the next relaunch after so many short runs in a row."""
        if short_runs == 0:
            return 0.0
        # 2**30 s is far beyond any cap; a larger exponent would only overflow.
        return min(self.backoff_first_s * 2.0 ** min(short_runs - 1, 30), self.backoff_max_s)

    def short_runs(self, before: int, restarts: Sequence[float], ended: float) -> int:
        """Return how many runs in a row were short, up to the one that ended at `ended`; `before` it there were so many."""
        return before + 1 if restarts and ended - restarts[-1] < self.settled_s else 0


@dataclass(frozen=True)
class Relaunch:
    """Start the instance again after `after_s`.

    The history to keep: `restarts`, this one included, and `short_runs`, how many runs in a row were short up to now.
    """

    after_s: float
    restarts: tuple[float, ...]
    short_runs: int = 0


@dataclass(frozen=True)
class Adopt:
    """Another copy runs: watch that one and never start a second (see invariant: exit codes)."""


@dataclass(frozen=True)
class AwaitBrokers:
    """The instance ended because brokers were unavailable: launch it when they are back. This counts as no relaunch.

    If only some brokers are unavailable, it is launched after `at_most_s` in any case: it may not need those brokers.
    """

    outage: RecordedOutage
    at_most_s: float


@dataclass(frozen=True)
class GiveUp:
    """A person is needed. `reason` says why and what to do; `what` is the alert to raise."""

    reason: str
    what: AlertKind = AlertKind.STREAM_FAILED


Decision = Relaunch | Adopt | AwaitBrokers | GiveUp


def explain(exit_code: int | None) -> str:
    """Return an exit code in words. None means that no exit code was recorded."""
    known = {
        None: "ended without a recorded exit code",
        int(ExitCode.OK): "stopped cleanly",
        int(ExitCode.FAILED): "failed",
        int(ExitCode.USAGE): "was called wrongly, or its topology or settings are invalid",
        int(ExitCode.RETRY): "asked to be started again",
        int(ExitCode.FENCED): "was fenced by another copy of itself",
        int(ExitCode.REFUSED): "refused to start",
    }
    if exit_code in known:
        return known[exit_code]
    if exit_code is not None and 128 < exit_code < 160:
        return f"was killed by signal {exit_code - 128}"
    return f"ended with code {exit_code}"


def decide(
    exit_code: int | None,
    restarts: Sequence[float],
    now: float,
    budget: RestartBudget,
    outage: RecordedOutage | None = None,
    kind: str = "instance",
    short_runs: int = 0,
) -> Decision:
    """Decide what to do about an instance, or a process of another `kind`, that ended with `exit_code`.

    `restarts` are the times of earlier relaunches and `now` is the current time (both in epoch seconds); `short_runs` is that
    of the last relaunch. `outage` is what the instance recorded about its brokers when it ended. An instance that stopped
    cleanly without a request from Airflow is relaunched like any other: while the DAG run lives, its instance runs.
    """
    if exit_code == ExitCode.FENCED:
        return Adopt()
    if exit_code in FINAL_CODES:
        return GiveUp(f"the {kind} {explain(exit_code)} (exit code {exit_code}); a relaunch would end the same way")
    if outage is not None and exit_code == ExitCode.RETRY:
        return AwaitBrokers(outage, budget.backoff_max_s)
    recent = tuple(at for at in restarts if now - at < budget.window_s)
    if len(recent) >= budget.max_restarts:
        return GiveUp(
            f"the {kind} {explain(exit_code)} and was already relaunched {len(recent)} times within "
            f"{budget.window_s:.0f} s, its budget; find the cause in its log, then unpause the DAG or clear this task",
            AlertKind.RESTARTS_SPENT,
        )
    short = budget.short_runs(short_runs, recent, now)
    after_s = budget.backoff_s(short)
    return Relaunch(after_s, (*recent, now + after_s), short)

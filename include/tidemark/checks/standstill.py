"""Does an instance stand still, and for how long? Pure functions of what was seen, for the deadline `rto_s`.

It stands still while it does not run, and while it runs and commits nothing although input waits. An instance that runs
and has nothing to read does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidemark.checks.verdict import Finding, Verdict

CHECK = "rto"
"""The name of this check in the history of verdicts."""


@dataclass(frozen=True)
class Input:
    """The sources of an instance's tasks as the broker has them.

    `waiting`: offsets that a read_committed reader could read and that are not committed. `committed`: the sum of the
    committed offsets, which moves with every batch.
    """

    waiting: int
    committed: int


@dataclass(frozen=True)
class Look:
    """One look at an instance at `time_ms` (epoch milliseconds).

    `stopped`: why it does not run; None where it does. `commits`: it says that it has just committed source records.
    `input` is None where it was not asked for, or the broker did not say.
    """

    time_ms: int
    stopped: str | None
    commits: bool = False
    input: Input | None = None


@dataclass(frozen=True)
class Standstill:
    """An instance stands still since `since_ms`. `committed` as in `Input`, where it is known; `is_told`: to a person."""

    since_ms: int
    why: str
    committed: int | None = None
    is_told: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For a file that outlives whoever looks."""
        return asdict(self)

    @classmethod
    def of(cls, body: object) -> Standstill | None:
        """From `to_dict`; None for anything else."""
        if not isinstance(body, Mapping):
            return None
        try:
            return cls(**body)
        except TypeError:
            return None


def follow(known: Standstill | None, look: Look) -> Standstill | None:
    """What is known after one more look; None while it moves, or has nothing to do.

    That it runs again is no end of a standstill: it ends when something is committed, or nothing waits.
    """
    if look.stopped is not None:
        return replace(known, why=look.stopped) if known else Standstill(look.time_ms, look.stopped)
    if look.commits:
        return None
    if look.input is None:
        return known
    waiting, committed = look.input.waiting, look.input.committed
    if waiting == 0:
        return None
    why = f"it runs and commits nothing while {waiting} offsets wait"
    if known is None or known.committed not in (None, committed):
        # Seen to wait for the first time, or something was committed since: the time counts from now.
        return Standstill(look.time_ms, why, committed)
    return replace(known, why=why, committed=committed)


def judged(name: str, standstill: Standstill | None, now_ms: int, rto_s: int) -> Finding:
    """The finding on one instance. FAILED when it stands still for longer than `rto_s`."""
    if standstill is None:
        return Finding(name, Verdict.OK, "it moves, or nothing waits", {"rto_s": rto_s})
    stood_s = (now_ms - standstill.since_ms) / 1000
    evidence = {"since_ms": standstill.since_ms, "stood_s": round(stood_s, 3), "rto_s": rto_s, "why": standstill.why}
    told = f"stands still for {stood_s:.0f} s: {standstill.why}"
    if stood_s > rto_s:
        remedy = "`tidemark status`, its log; to restore its state: the DAG restore_oncall"
        return Finding(name, Verdict.FAILED, f"{told}; allowed are {rto_s} s (rto_s); {remedy}", evidence)
    return Finding(name, Verdict.WARNING, f"{told}; allowed are {rto_s} s", evidence)


def ended(name: str, standstill: Standstill, now_ms: int, rto_s: int) -> Finding:
    """The finding when it moves again after a standstill that was told."""
    stood_s = (now_ms - standstill.since_ms) / 1000
    evidence = {"since_ms": standstill.since_ms, "stood_s": round(stood_s, 3), "rto_s": rto_s}
    return Finding(name, Verdict.OK, f"moves again after {stood_s:.0f} s", evidence)

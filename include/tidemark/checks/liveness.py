"""The check of the deadline `rto_s`: whether an instance makes no progress, and for how long. Pure functions of samples.

An instance is at a standstill while it does not run, and while it runs and commits nothing although input waits. An
instance that runs and has nothing to read is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.supervision.standstill_file import Standstill
from tidemark.verdict import Finding, Verdict

CHECK = "rto"
"""The name of this check in the history of verdicts."""


@dataclass(frozen=True)
class Input:
    """The state of an instance's sources at the broker.

    `waiting`: offsets that a read_committed reader could read and that are not committed. `committed`: the sum of the
    committed offsets, which changes with every batch.
    """

    waiting: int
    committed: int


@dataclass(frozen=True)
class Look:
    """One sample of an instance, at `time_ms` (epoch milliseconds).

    `stopped`: why it does not run; None if it runs. `commits`: it reports that it has just committed source records.
    `input` is None if the broker was not asked or did not answer. `waits_for`: what the instance reports that it waits for.
    """

    time_ms: int
    stopped: str | None
    commits: bool = False
    input: Input | None = None
    waits_for: str = ""


def follow(known: Standstill | None, look: Look) -> Standstill | None:
    """Return the standstill after one more sample; None if the instance makes progress or has nothing to do.

    A standstill does not end when the instance runs again, but when it commits something or nothing waits.
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
    if look.waits_for:
        why += f": {look.waits_for}"
    if known is None or known.committed not in (None, committed):
        # Input waits for the first time, or something was committed since: the time counts from now.
        return Standstill(look.time_ms, why, committed)
    return replace(known, why=why, committed=committed)


def judged(name: str, standstill: Standstill | None, now_ms: int, rto_s: int) -> Finding:
    """Return the finding on one instance: FAILED after more than `rto_s` seconds without progress."""
    if standstill is None:
        return Finding(name, Verdict.OK, "it makes progress, or nothing waits", {"rto_s": rto_s})
    stood_s = (now_ms - standstill.since_ms) / 1000
    evidence = {"since_ms": standstill.since_ms, "stood_s": round(stood_s, 3), "rto_s": rto_s, "why": standstill.why}
    summary = f"has made no progress for {stood_s:.0f} s: {standstill.why}"
    if stood_s > rto_s:
        remedy = "see `tidemark status` and its log; to restore its state, use the DAG restore_oncall"
        return Finding(name, Verdict.FAILED, f"{summary}; the limit is {rto_s} s (rto_s); {remedy}", evidence)
    return Finding(name, Verdict.WARNING, f"{summary}; the limit is {rto_s} s", evidence)


def ended(name: str, standstill: Standstill, now_ms: int, rto_s: int) -> Finding:
    """Return the finding on an instance that makes progress again after a standstill that was reported."""
    stood_s = (now_ms - standstill.since_ms) / 1000
    evidence = {"since_ms": standstill.since_ms, "stood_s": round(stood_s, 3), "rto_s": rto_s}
    return Finding(name, Verdict.OK, f"makes progress again after {stood_s:.0f} s", evidence)


def forgotten(name: str, standstill: Standstill, now_ms: int, rto_s: int) -> Finding:
    """Return the finding on an instance whose reported standstill is no longer counted, because a person acted."""
    stood_s = (now_ms - standstill.since_ms) / 1000
    evidence = {"since_ms": standstill.since_ms, "stood_s": round(stood_s, 3), "rto_s": rto_s}
    message = f"was stopped or started on purpose after {stood_s:.0f} s without progress, which no longer count"
    return Finding(name, Verdict.OK, message, evidence)

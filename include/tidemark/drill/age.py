"""Whether the last drill that passed is recent enough: a pure function of two times."""

from __future__ import annotations

from tidemark.checks.verdict import Finding, Verdict
from tidemark.topology.durations import format_ms

SUBJECT = "last passing drill"


def drill_age(last_passed_ms: int | None, max_age_ms: int, now_ms: int) -> Finding:
    """OK up to and including `max_age_ms`. `last_passed_ms` is None where none ever passed."""
    if last_passed_ms is None:
        return Finding(SUBJECT, Verdict.FAILED, "no drill has ever passed: trigger restore_drill, or `tidemark drill`")
    age_ms = max(0, now_ms - last_passed_ms)
    evidence = {"age_ms": age_ms, "max_age_ms": max_age_ms, "last_passed_ms": last_passed_ms}
    if age_ms <= max_age_ms:
        return Finding(SUBJECT, Verdict.OK, f"passed {_told(age_ms)} ago", evidence)
    return Finding(
        SUBJECT,
        Verdict.FAILED,
        f"the last one passed {_told(age_ms)} ago, {format_ms(max_age_ms)} are allowed: trigger restore_drill and see why "
        "the last ones did not pass",
        evidence,
    )


def _told(age_ms: int) -> str:
    """In whole minutes, hours or days, whichever says enough."""
    for unit_ms in (86_400_000, 3_600_000, 60_000):
        if age_ms >= 2 * unit_ms:
            return format_ms(age_ms // unit_ms * unit_ms)
    return "less than two minutes"

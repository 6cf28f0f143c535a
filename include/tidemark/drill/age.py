"""Decision whether the last drill that passed is recent enough: a pure function of two times."""

from __future__ import annotations

from tidemark.topology.durations import format_ms
from tidemark.verdict import Finding, Verdict

SUBJECT = "last passing drill"


def drill_age(last_passed_ms: int | None, max_age_ms: int, now_ms: int) -> Finding:
    """Return OK up to and including an age of `max_age_ms`. `last_passed_ms` is None if no drill has passed."""
    if last_passed_ms is None:
        return Finding(
            SUBJECT, Verdict.FAILED, "no drill has ever passed: trigger restore_drill, or use `tidemark drill run`"
        )
    age_ms = max(0, now_ms - last_passed_ms)
    evidence = {"age_ms": age_ms, "max_age_ms": max_age_ms, "last_passed_ms": last_passed_ms}
    if age_ms <= max_age_ms:
        return Finding(SUBJECT, Verdict.OK, f"passed {_format(age_ms)} ago", evidence)
    return Finding(
        SUBJECT,
        Verdict.FAILED,
        f"the last drill passed {_format(age_ms)} ago, and the limit is {format_ms(max_age_ms)}: trigger "
        "restore_drill, and see why the drills since did not pass",
        evidence,
    )


def _format(age_ms: int) -> str:
    """Format in whole minutes, hours or days, whichever is precise enough."""
    for unit_ms in (86_400_000, 3_600_000, 60_000):
        if age_ms >= 2 * unit_ms:
            return format_ms(age_ms // unit_ms * unit_ms)
    return "less than two minutes"

"""Decision whether the last drill that passed is recent enough, and of the present stores. A pure function."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.topology.durations import format_ms
from tidemark.verdict import Finding, Verdict

SUBJECT = "last passing drill"
_CLOCKS_MS = 3_600_000


def drill_age(last_passed_ms: int | None, undrilled: Sequence[str], max_age_ms: int, now_ms: int) -> Finding:
    """Return OK up to and including an age of `max_age_ms`. `last_passed_ms` is None if no drill has passed.

    A drill of more than an hour from now is no evidence: a clock that was ahead has given it its time.

    `undrilled` are the present stores that this drill has not compared, because they are newer. It says nothing about them, but
    the next drill may come as late as if it did: until then, they give a warning.
    """
    if last_passed_ms is None:
        return Finding(
            SUBJECT, Verdict.FAILED, "no drill has ever passed: trigger restore_drill, or use `tidemark drill run NAME`"
        )
    age_ms = max(0, now_ms - last_passed_ms)
    evidence = {"age_ms": age_ms, "max_age_ms": max_age_ms, "last_passed_ms": last_passed_ms}
    if last_passed_ms > now_ms + _CLOCKS_MS:
        return Finding(
            SUBJECT,
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"the last drill passed {_format(last_passed_ms - now_ms)} from now, so a clock was ahead and its age is not "
            "known: trigger restore_drill, or use `tidemark drill run NAME`",
            evidence,
        )
    if undrilled and age_ms <= max_age_ms:
        more = f" and {len(undrilled) - 1} more" if len(undrilled) > 1 else ""
        return Finding(
            SUBJECT,
            Verdict.WARNING,
            f"the last drill passed {_format(age_ms)} ago and did not compare the present store {undrilled[0]}{more}, which an "
            "upgrade, a rescale or a reset has made since: trigger restore_drill, or use `tidemark drill run NAME`",
            {**evidence, "undrilled": list(undrilled)},
        )
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

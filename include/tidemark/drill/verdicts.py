"""Verdict of a comparison: a pure function of the figures and of what the changelog keeps.

See invariants: two retentions, evidence or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.drill.rebuild import Built, SavedState
from tidemark.drill.store_diff import Compared
from tidemark.operations.drill_history.report import RebuildMethod, StoreDrill
from tidemark.restore.bounds import Keeping
from tidemark.topology.durations import format_ms
from tidemark.verdict import Verdict


def judge(
    state: SavedState,
    way: RebuildMethod,
    built: Built,
    compared: Compared | None,
    first: Sequence[str],
    keeping: Keeping,
) -> StoreDrill:
    """Return one store's result. `compared` is None if there was nothing to compare, `first` names differing keys."""
    verdict, message = _verdict(state, built, compared, "; ".join(first), keeping)
    _, without_records = _verdict(state, built, compared, _WHERE_THE_KEYS_ARE, keeping)
    found = compared or _NOTHING
    return StoreDrill(
        task=str(state.task), store=state.spec.name, way=way, savepoint_id=state.savepoint_id,
        verdict=verdict, message=message, from_offset=built.from_offset, end_offset=built.end_offset,
        records=built.records, keys=found.keys, bytes=found.size_bytes, seconds=round(built.seconds, 3),
        compared=found.compared, left_out=found.left_out, differing=found.different, deleted=found.deleted,
        is_whole=found.is_whole, altered=found.altered, missing=found.missing, extra=found.extra, first=tuple(first),
        message_without_records=without_records, value_layout=state.copy.checkpoint.value_layout,
    )  # fmt: skip


def _verdict(
    state: SavedState, built: Built, compared: Compared | None, keys: str, keeping: Keeping
) -> tuple[Verdict, str]:
    if built.fault is not None or compared is None:
        return Verdict.FAILED, f"it cannot be rebuilt: {built.fault}"
    summary = (
        f"{compared.different} keys differ from savepoint {state.savepoint_id} ({compared.altered} altered, "
        f"{compared.missing} missing, {compared.extra} extra): {keys}"
    )
    took_ms = built.ended_ms - state.taken_ms
    seen = summary if compared.different else "nothing differs"
    if state.taken_ms < keeping.compacted_before_ms:
        return Verdict.NOT_ENOUGH_EVIDENCE, (
            f"the savepoint is from before min.compaction.lag.ms of {keeping.topic} was raised, so its values may be compacted "
            f"away under the smaller value: take a savepoint, and drill again ({seen})"
        )
    if took_ms >= keeping.min_compaction_lag_ms:
        return Verdict.NOT_ENOUGH_EVIDENCE, (
            f"its changelog was read until {format_ms(took_ms)} after the savepoint, but min.compaction.lag.ms of "
            f"{keeping.topic} is {format_ms(keeping.min_compaction_lag_ms)}: values of the savepoint may be compacted away; "
            f"raise it, take a savepoint after that, and drill again ({seen})"
        )
    if compared.different:
        return Verdict.FAILED, (
            f"{summary}; the store or its changelog is wrong, and a drill cannot tell which: take a savepoint and keep it, "
            f"find the program that writes to {keeping.topic}, and do not restore from the changelog alone"
        )
    return compared.figures.verdict, _format(compared, keeping)


def _format(compared: Compared, keeping: Keeping) -> str:
    """Return what was compared and left out, if nothing differs."""
    reasons = {
        "expired": compared.expired,
        "past the broker's retention": compared.aged,
        "without a record": compared.deleted,
    }
    left_out = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    figures = f"{compared.compared} keys equal" + (f", left out: {left_out}" if left_out else "")
    if compared.deleted:
        return (
            f"{keeping.topic} has lost its beginning, and {compared.deleted} keys of the savepoint have no record in the "
            f"rest: they cannot be rebuilt from it alone; keep the savepoint, and find out what deleted the records "
            f"({figures})"
        )
    if compared.compared:
        return figures
    if compared.is_whole:
        return f"holds no live key, and neither does its changelog, which was read as a whole ({figures})"
    return f"nothing is left of {keeping.topic} to compare with ({figures})"


_WHERE_THE_KEYS_ARE = "the keys are in `tidemark drill history NAME --json`"
_NOTHING = Compared(0, 0, 0, 0, 0, 0, 0, 0, 0, is_whole=False, first=())

"""What a comparison comes to: a pure function of the figures and of what the changelog keeps (rules 11 and 21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.checks.verdict import Verdict
from tidemark.drill.differ import Bounds, Compared
from tidemark.drill.rebuild import Built, SavedState
from tidemark.drill.report import StoreDrill, Way
from tidemark.tasks.values import first_live_segment
from tidemark.topology.durations import format_ms
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class Keeping:
    """What a changelog topic is set to keep. `retention_ms` is None where it deletes nothing by age."""

    topic: str
    min_compaction_lag_ms: int
    retention_ms: int | None

    @classmethod
    def of(cls, topic: str, config: Mapping[str, str]) -> Keeping:
        """From the topic's settings as the broker tells them."""
        deletes = "delete" in config.get("cleanup.policy", "delete")
        retention_ms = int(config.get("retention.ms", "-1"))
        lag_ms = int(config.get("min.compaction.lag.ms", "0"))
        return cls(topic, lag_ms, retention_ms if deletes and retention_ms >= 0 else None)


def bounds_of(
    spec: StoreSpec, stream_time_ms: int, keeping: Keeping, low_offset: int, max_ahead_ms: int, now_ms: int
) -> Bounds:
    """Which segments of a store count.

    The broker can have deleted a window only when its last record is older than `retention_ms` on the wall clock; and a
    window begins at most `max_ahead_ms` after that record was written (rule 14).
    """
    first_live = first_live_segment(spec, stream_time_ms)
    if low_offset == 0 or keeping.retention_ms is None or spec.segment_ms is None:
        return Bounds(first_live, None)
    youngest_start_ms = now_ms - keeping.retention_ms + max_ahead_ms
    return Bounds(first_live, youngest_start_ms // spec.segment_ms + 1)


def judge(
    state: SavedState, way: Way, built: Built, compared: Compared | None, first: Sequence[str], keeping: Keeping
) -> StoreDrill:
    """One store's verdict; `compared` is None where there was nothing to compare, `first` names what differs."""
    verdict, message = _verdict(state, built, compared, first, keeping)
    found = compared or Compared(0, 0, 0, 0, 0, (), ())
    return StoreDrill(
        task=str(state.task), store=state.spec.name, way=way, savepoint_id=state.savepoint_id,
        verdict=verdict, message=message, from_offset=built.from_offset, end_offset=built.end_offset,
        records=built.records, keys=found.keys, bytes=found.size_bytes, seconds=round(built.seconds, 3),
        altered=found.altered, missing=found.missing, extra=found.extra, left_out=len(found.perhaps_deleted),
        first=tuple(first),
    )  # fmt: skip


def _verdict(
    state: SavedState, built: Built, compared: Compared | None, first: Sequence[str], keeping: Keeping
) -> tuple[Verdict, str]:
    if built.fault is not None or compared is None:
        return Verdict.FAILED, f"it cannot be rebuilt: {built.fault}"
    told = (
        f"{compared.different} keys differ from savepoint {state.savepoint_id} ({compared.altered} altered, "
        f"{compared.missing} missing, {compared.extra} extra): {'; '.join(first)}"
    )
    took_ms = built.ended_ms - state.taken_ms
    if took_ms >= keeping.min_compaction_lag_ms:
        seen = told if compared.different else "nothing differs"
        return Verdict.NOT_ENOUGH_EVIDENCE, (
            f"its changelog was read until {format_ms(took_ms)} after the savepoint, min.compaction.lag.ms of "
            f"{keeping.topic} is {format_ms(keeping.min_compaction_lag_ms)}: what the savepoint held may be compacted away; "
            f"raise it and drill again ({seen})"
        )
    if compared.different:
        return Verdict.FAILED, (
            f"{told}; take a savepoint and keep it, find out who writes to {keeping.topic}, and do not restore from the "
            "changelog alone"
        )
    left_out = len(compared.perhaps_deleted)
    more = f", {left_out} windows past the broker's retention left out" if left_out else ""
    return Verdict.OK, f"{compared.keys} keys equal{more}"

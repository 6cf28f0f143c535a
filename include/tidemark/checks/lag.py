"""The lag check: how far an application is behind, and whether it catches up, over a sliding window of samples.

A pure function of samples and `now`. Lag is counted in offsets up to the last stable offset, which is what a
read_committed reader can see; the distance from there to the end belongs to open transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from tidemark.kafka.transactions import OpenTransaction
from tidemark.names import TopicPartition
from tidemark.verdict import Finding, Verdict


@dataclass(frozen=True)
class LagSample:
    """One source partition at `time_ms` (epoch milliseconds). Offsets are next offsets.

    `low_offset`: the first that exists. `stable_offset`: where a read_committed reader must stop. `committed_offset`: None
    if the group has none. Only then `recorded_offset` is read: the offset in the last commit record, None if there is no
    record either. `is_owned`: a member of the group owns its task; it is not stored, as only that of the newest sample
    counts.
    """

    time_ms: int
    partition: TopicPartition
    low_offset: int
    stable_offset: int
    end_offset: int
    committed_offset: int | None
    recorded_offset: int | None = None
    is_owned: bool = True

    @property
    def lag_offsets(self) -> int:
        """Return the offsets that could be read and are not processed; transaction markers and aborted records count."""
        stands = self.standing_offset
        return max(0, self.stable_offset - (self.low_offset if stands is None else stands))

    @property
    def standing_offset(self) -> int | None:
        """Return where a start would continue (see `docs/start-plan.md`); None if it would begin without an offset."""
        return self.recorded_offset if self.committed_offset is None else self.committed_offset


@dataclass(frozen=True)
class LagRules:
    """Limits of the check. A verdict on progress needs `least_samples` over `least_span_ms`, all from the last `window_ms`."""

    open_transaction_ms: int
    window_ms: int = 1_800_000
    least_samples: int = 3
    least_span_ms: int = 60_000


def lag_findings(
    topology: str, samples: Sequence[LagSample], lead_topics: Mapping[str, str], now_ms: int, rules: LagRules
) -> list[Finding]:
    """Return one finding per partition that has samples in the window, sorted; samples may come in any order.

    `topology` names the module, for remedies. `lead_topics` has the lead topic of each source topic: partitions of one number
    whose topics have one lead topic are the sources of one task.
    """
    by_partition: dict[TopicPartition, list[LagSample]] = {}
    for sample in sorted(samples, key=lambda each: each.time_ms):
        if now_ms - rules.window_ms <= sample.time_ms <= now_ms:
            by_partition.setdefault(sample.partition, []).append(sample)
    advances: dict[TopicPartition, list[_Advance]] = {}
    for partition, seen in by_partition.items():
        task = TopicPartition(lead_topics[partition.topic], partition.partition)
        advances.setdefault(task, []).extend(_advances(seen))
    return [
        _of_partition(
            topology,
            by_partition[partition],
            advances[TopicPartition(lead_topics[partition.topic], partition.partition)],
            rules,
        )
        for partition in sorted(by_partition)
    ]


@dataclass(frozen=True)
class _Advance:
    """A source's committed offset grew between two samples, taken at `from_ms` and `to_ms`."""

    partition: TopicPartition
    from_ms: int
    to_ms: int

    def overlaps(self, earlier: LagSample, later: LagSample) -> bool:
        return self.from_ms < later.time_ms and self.to_ms > earlier.time_ms


def _advances(seen: Sequence[LagSample]) -> list[_Advance]:
    return [
        _Advance(later.partition, earlier.time_ms, later.time_ms)
        for earlier, later in pairwise(seen)
        if (before := earlier.committed_offset) is not None
        and (after := later.committed_offset) is not None
        and before < after
    ]


def _of_partition(topology: str, seen: Sequence[LagSample], advances: Sequence[_Advance], rules: LagRules) -> Finding:
    verdict, message = _verdict(topology, seen, advances, rules)
    newest = seen[-1]
    evidence = {name: value for name, value in asdict(newest).items() if name != "partition"}
    evidence |= {
        "lag_offsets": newest.lag_offsets,
        "held_offsets": newest.end_offset - newest.stable_offset,
        "samples": len(seen),
        "span_ms": newest.time_ms - seen[0].time_ms,
    }
    return Finding(str(newest.partition), verdict, message, evidence)


def _verdict(
    topology: str, seen: Sequence[LagSample], advances: Sequence[_Advance], rules: LagRules
) -> tuple[Verdict, str]:
    newest = seen[-1]
    committed, lag = newest.standing_offset, newest.lag_offsets
    if committed is None:
        known = next((s.committed_offset for s in reversed(seen) if s.committed_offset is not None), None)
        if known is not None:
            return (
                Verdict.FAILED,
                f"the committed offset is lost, {known} when it was last seen, and no commit record has one: a start of "
                f"{topology} is refused, or begins without state; restore the commits topic, or give the topology another "
                "application id to begin again",
            )
        if newest.stable_offset <= newest.low_offset:
            return Verdict.OK, "holds nothing to read yet, and nothing is committed"
        return (
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"{lag} offsets wait and the group has never committed here: unpause stream__{topology}, or start an instance",
        )
    if committed < newest.low_offset:
        return (
            Verdict.FAILED,
            f"{_named(newest)} {committed} is below the low watermark {newest.low_offset}: {newest.low_offset - committed} "
            f"offsets are deleted unread; raise retention.ms of {newest.partition.topic}; to continue without them: "
            f"{_reset(topology, newest, newest.low_offset)}",
        )
    if committed > newest.end_offset:
        return (
            Verdict.FAILED,
            f"{_named(newest)} {committed} is beyond the end {newest.end_offset}: the topic was created again, or it was "
            "truncated; bring the old one back; to read all that it holds if it was created again: `tidemark reset run "
            f"{topology} --to earliest --state keep`; to continue behind its end if it was truncated: "
            f"{_reset(topology, newest, newest.end_offset)}",
        )
    if newest.committed_offset is None and lag == 0 and newest.is_owned:
        return Verdict.OK, f"nothing left to read at {committed}, the offset in the last commit record"
    if newest.committed_offset is None:
        return (
            Verdict.FAILED,
            f"the committed offset is lost: the group was deleted, or was empty for offsets.retention.minutes; {lag} offsets "
            f"wait after {committed}, the offset in the last commit record: unpause "
            f"stream__{topology}, or start an instance, which continues from there",
        )
    if lag == 0:
        return Verdict.OK, f"nothing left to read at {committed}"
    if not _is_evidence(seen, rules):
        return (
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"{lag} offsets behind; {len(seen)} samples over {_span_ms(seen) / 1000:.0f} s do not show whether it moves, "
            f"{rules.least_samples} over {rules.least_span_ms / 1000:.0f} s do: check again",
        )
    return _movement(topology, seen, advances, rules)


def _movement(
    topology: str, seen: Sequence[LagSample], advances: Sequence[_Advance], rules: LagRules
) -> tuple[Verdict, str]:
    """Return the verdict on a partition that is behind, with enough samples.

    `advances` are those of all sources of its task. They are read together in the order of their times, so one may wait
    while another advances.
    """
    newest, lag = seen[-1], seen[-1].lag_offsets
    still = _last_run(seen, lambda earlier, later: earlier.committed_offset == later.committed_offset)
    if _is_evidence(still, rules):
        others = [advance for advance in advances if advance.overlaps(still[0], newest)]
        alone = _last_run(still, lambda earlier, later: not any(each.overlaps(earlier, later) for each in others))
        if not _is_evidence(alone, rules):
            latest = max(others, key=lambda advance: advance.to_ms)
            return (
                Verdict.OK,
                f"{lag} offsets behind, and waits for older records of {latest.partition}, which the same task reads first",
            )
        summary = f"nothing committed for {_span_ms(alone) / 1000:.0f} s or more while {lag} offsets wait"
        if not newest.is_owned:
            return (
                Verdict.FAILED,
                f"stopped: {summary}, and no member of the group owns its task; unpause stream__{topology}, or start an "
                "instance",
            )
        return Verdict.FAILED, f"stalled: {summary}; look at `tidemark status` and the instance's log"
    for earlier, later in pairwise(seen):
        before, after = earlier.committed_offset, later.committed_offset
        if before is not None and (after is None or after < before):
            return (
                Verdict.WARNING,
                f"rewind: the committed offset went back from {before} to {after}; {lag} offsets behind",
            )
    growing = _last_run(seen, lambda earlier, later: earlier.lag_offsets <= later.lag_offsets)
    if _is_evidence(growing, rules) and growing[0].lag_offsets < lag:
        rate = (lag - growing[0].lag_offsets) * 1000 / _span_ms(growing)
        return (
            Verdict.WARNING,
            f"falls behind by {rate:.1f} offsets/s, now {lag}: start more instances, or give Spark more cores",
        )
    gained = (seen[0].lag_offsets - lag) * 1000 / (newest.time_ms - seen[0].time_ms)
    drained = f", caught up in about {lag / gained:.0f} s" if gained > 0 else ""
    return Verdict.OK, f"{lag} offsets behind and moving{drained}"


def _last_run(seen: Sequence[LagSample], belongs: Callable[[LagSample, LagSample], bool]) -> Sequence[LagSample]:
    """Return the newest samples in a row that are behind, each of which `belongs` to the one after it."""
    first = len(seen) - 1
    while first > 0 and seen[first - 1].lag_offsets > 0 and belongs(seen[first - 1], seen[first]):
        first -= 1
    return seen[first:]


def _is_evidence(run: Sequence[LagSample], rules: LagRules) -> bool:
    return len(run) >= rules.least_samples and _span_ms(run) >= rules.least_span_ms


def _span_ms(run: Sequence[LagSample]) -> int:
    return run[-1].time_ms - run[0].time_ms


def _named(sample: LagSample) -> str:
    """Return the name of the offset in `standing_offset`, for messages."""
    return "the committed offset is lost, the recorded one" if sample.committed_offset is None else "committed offset"


def _reset(topology: str, sample: LagSample, offset: int) -> str:
    """Return the command that continues at an offset that exists."""
    given = f"{sample.partition.topic}:{sample.partition.partition}={offset}"
    return (
        f"`tidemark reset run {topology} --to offsets --state keep --offset {given}`, with the committed offsets of the other "
        "partitions"
    )


def offline_findings(offline: Sequence[TopicPartition]) -> list[Finding]:
    """Return one finding per partition without a leader. In a sink it stops every commit, in a source its task."""
    return [
        Finding(
            str(place),
            Verdict.FAILED,
            "the partition has no leader, so it can be neither read nor written; an application that writes to it commits "
            "nothing until it is back, and loses nothing: start its broker again, or move the partition to other brokers "
            "with `tidemark kafka reassign-partitions`",
        )
        for place in sorted(offline)
    ]


def transaction_findings(looked_at: int, found: Sequence[OpenTransaction], rules: LagRules) -> list[Finding]:
    """Return one finding per partition that is held back; a single one if none of `looked_at` partitions is."""
    if not looked_at:
        return []
    if not found:
        return [
            Finding(
                "transactions",
                Verdict.OK,
                f"no open transaction holds readers of {looked_at} partitions back",
                {"partitions": looked_at},
            )
        ]
    return [_of_transaction(each, rules) for each in sorted(found, key=lambda each: each.partition)]


def _of_transaction(found: OpenTransaction, rules: LagRules) -> Finding:
    held = found.end_offset - found.stable_offset
    who = f"producer {found.producer_id}" if found.transactional_id is None else f"transaction {found.transactional_id}"
    evidence = {name: value for name, value in asdict(found).items() if name not in ("partition", "why")}
    subject = f"transactions of {found.partition}"
    place = f"read_committed readers stop at {found.stable_offset}, {held} offsets before the end"
    if found.is_hanging and found.transactional_id is not None:
        verdict = Verdict.FAILED
        message = (
            f"{place}: {who} has ended, but this partition has lost the marker of its end, as when no broker leads it at that "
            "moment. If it is one of a running instance, that instance ends it, at the latest with its next commit there. If "
            'not, see docs/commit-protocol.md, "A partition that loses its last broker within a transaction"'
        )
    elif found.open_ms is None:
        verdict, message = Verdict.NOT_ENOUGH_EVIDENCE, f"{place}; the transaction's age is not known: {found.why}"
    elif found.open_ms < rules.open_transaction_ms:
        verdict, message = Verdict.OK, f"{place} for {who}, open for {found.open_ms / 1000:.1f} s"
    else:
        verdict = Verdict.FAILED
        limit = "" if found.timeout_ms is None else f"; the broker aborts it after {found.timeout_ms / 1000:.0f} s"
        message = (
            f"{place}: {who} is open for {found.open_ms / 1000:.0f} s{limit}. End its process, or `tidemark kafka "
            f"transactions abort --topic {found.partition.topic} --partition {found.partition.partition} --start-offset "
            f"{found.stable_offset}`"
        )
    return Finding(subject, verdict, message, evidence)

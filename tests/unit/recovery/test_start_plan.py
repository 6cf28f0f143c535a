"""Every combination of the start table, and its boundaries."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from tidemark.commit.metadata import OffsetMetadata
from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TaskId, TopicPartition
from tidemark.recovery.candidates import MEASURED, Rates, holds_last_commit
from tidemark.recovery.evidence import (
    CommittedProgress,
    KeptDeletions,
    SourceEvidence,
    StateCopy,
    StoreEvidence,
    TaskEvidence,
    Watermarks,
)
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import (
    Fresh,
    Refuse,
    Resume,
    StartPlan,
    best_candidate,
    committed_progress_of,
    plan_start,
    unlogged_fault,
)
from tidemark.registry.topic_identities import CHANGELOG_REMEDY, LostTopic, TopicUse
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import Guarantee

SOURCE = TopicPartition("pulse-events", 2)
CHANGELOG = TopicPartition("app-counts-changelog", 2)
LAYOUT = "3:pulses=count<i8"
HOUR = 3_600_000
CHANGELOG_90 = Watermarks(0, 90)
SOURCE_500 = Watermarks(0, 500)
NOW = 1_700_000_000_000


READY, TAIL, WHOLE = "ready", "tail", "whole"


def way_of(plan: StartPlan) -> object:
    """What becomes of the store, or the kind of plan that does not come to that."""
    if not isinstance(plan, Resume):
        return type(plan)
    candidate = plan.stores["counts"]
    assert candidate.fault is None
    if candidate.copy is None:
        return WHOLE
    return READY if candidate.is_ready else TAIL


def times(stream_time_ms: int) -> StreamTimes:
    return StreamTimes(stream_time_ms, {"counts": stream_time_ms})


def a_record(end: int = 100, stream_time_ms: int = NOW) -> CommitRecord:
    return CommitRecord(
        kind=CommitKind.BATCH, application_id="app", topology_version="1", task=TaskId(0, 2), instance=0, batch=7,
        commit_time_ms=NOW, sources={"pulse-events": {2: (50, end)}}, stream_times=times(stream_time_ms),
        rows=50, late_rows=0, bad_rows=0, filtered_rows=0, sinks={}, changelogs={}, ends_before={},
    )  # fmt: skip


def a_copy(
    offset: int = 100, changelog_offset: int = 60, age_ms: int = 0, kind: SourceOfState = SourceOfState.LOCAL,
    layout: str = LAYOUT, application_id: str = "app",
) -> StateCopy:  # fmt: skip
    checkpoint = StoreCheckpoint(
        application_id=application_id, topology_version="1", store="counts", value_layout=layout, batch=7,
        commit_time_ms=NOW - age_ms, source_offsets={"pulse-events": offset}, stream_time_ms=NOW,
        changelog_offset=changelog_offset,
    )  # fmt: skip
    return StateCopy(kind, checkpoint, f"/state/{kind.name.lower()}")


def found(
    *,
    committed: int | None = 100,
    metadata: OffsetMetadata | None = None,
    record: CommitRecord | None = None,
    copies: tuple[StateCopy, ...] = (),
    changelog: Watermarks = CHANGELOG_90,
    source: Watermarks = SOURCE_500,
    store_retention_ms: int | None = 6 * HOUR,
    changelog_retention_ms: int | None = 30 * HOUR,
    more: tuple[SourceEvidence, ...] = (),
    not_recomputable_reason: str | None = None,
    is_source: bool = False,
    young_offset: int | None = None,
) -> TaskEvidence:
    store = StoreEvidence(
        store="counts", value_layout=LAYOUT, copies=copies, changelog=CHANGELOG, changelog_watermarks=changelog,
        kept_deletions=KeptDeletions(24 * HOUR), store_retention_ms=store_retention_ms,
        changelog_retention_ms=changelog_retention_ms, not_recomputable_reason=not_recomputable_reason, is_source=is_source,
        young_offset=young_offset,
    )  # fmt: skip
    return TaskEvidence(
        application_id="app", task=TaskId(0, 2), sources=(SourceEvidence(SOURCE, committed, source, source.low), *more),
        committed_metadata=metadata, last_record=record, stores=(store,), now_ms=NOW,
    )  # fmt: skip


COMMITTED = (None, 99, 100, 101)
RECORDS = (None, a_record(100))
STORES = ((), (a_copy(99),), (a_copy(100),), (a_copy(101),))
CHANGELOGS = (Watermarks(0, 0), Watermarks(0, 90), Watermarks(70, 90))


def expected(committed, record, copies, changelog) -> object:
    """The table of docs/start-plan.md in code of its own."""
    if record is None:
        return Refuse if copies or changelog.end > 0 else Fresh
    if committed not in (None, 100):
        return Refuse
    if not copies:
        return WHOLE
    at = copies[0].checkpoint.source_offsets["pulse-events"]
    if at > 100:
        return Refuse
    # It was written up to 60, a moment ago: what ends before that, or begins after it, is not that changelog.
    if changelog.end < 60 or changelog.low > 60:
        return Refuse
    return READY if at == 100 else TAIL


@pytest.mark.parametrize("case", list(itertools.product(COMMITTED, RECORDS, STORES, CHANGELOGS)), ids=str)
def test_should_plan_every_combination_as_the_table_says(case):
    committed, record, copies, changelog = case
    plan = plan_start(found(committed=committed, record=record, copies=copies, changelog=changelog))
    assert way_of(plan) == expected(committed, record, copies, changelog)


def test_should_begin_a_new_application_at_an_offset_that_was_committed_for_it():
    plan = plan_start(found(committed=42, changelog=Watermarks(0, 0)))
    assert plan == Fresh({"pulse-events": 42})


def test_should_begin_at_the_first_source_record_when_nothing_exists():
    plan = plan_start(found(committed=None, changelog=Watermarks(0, 0), source=Watermarks(17, 500)))
    assert plan == Fresh({"pulse-events": 17})


def test_should_take_the_commit_record_when_the_groups_offsets_have_expired():
    plan = plan_start(found(committed=None, record=a_record(100), copies=(a_copy(100),)))
    assert isinstance(plan, Resume)
    assert (plan.committed.next_offsets, plan.committed.batch) == ({"pulse-events": 100}, 7)


def test_should_take_stream_time_from_the_offset_metadata_or_else_from_the_record():
    metadata = OffsetMetadata(7, times(NOW - 5), "1")
    with_metadata = plan_start(found(record=a_record(), metadata=metadata, copies=(a_copy(),)))
    without = plan_start(found(record=a_record(), copies=(a_copy(),)))
    assert isinstance(with_metadata, Resume)
    assert isinstance(without, Resume)
    assert with_metadata.committed.stream_times == times(NOW - 5)
    assert without.committed.stream_times == times(NOW)


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("copies", [(), (a_copy(150),), (a_copy(100),)], ids=["no store", "ahead", "level"])
@pytest.mark.parametrize(
    ("batch", "committed", "lost"),
    [(6, 150, False), (7, 150, False), (8, 150, True), (7, 100, False), (8, 100, True)],
)
def test_should_refuse_when_the_commits_topic_lost_the_record_of_the_offsets(batch, committed, lost, copies, guarantee):
    """Moving the offsets back would count the records of batch 8 twice, because the changelogs have them."""
    record = dataclasses.replace(a_record(100), guarantee=guarantee)
    metadata = OffsetMetadata(batch, times(NOW), "1")
    progress = committed_progress_of(found(committed=committed, metadata=metadata, record=record, copies=copies))
    if guarantee is Guarantee.AT_LEAST_ONCE:
        # Its offsets are committed last, so they are right with and without the record.
        assert isinstance(progress, CommittedProgress)
        assert progress.next_offsets == {"pulse-events": committed}
        return
    assert isinstance(progress, Refuse) is (committed == 150 or lost)
    if isinstance(progress, Refuse):
        assert ("app-commits lost its last records" in progress.reason) is lost
        assert ("--to-offset" in progress.remedy) is not lost


def test_should_not_move_some_offsets_back_when_others_have_expired_and_the_record_is_lost():
    record = dataclasses.replace(
        a_record(100), guarantee=Guarantee.AT_LEAST_ONCE, sources={"pulse-events": {2: (50, 100)}, "wards": {2: (0, 5)}}
    )
    expired = SourceEvidence(TopicPartition("wards", 2), None, SOURCE_500, 0)
    metadata = OffsetMetadata(8, times(NOW), "1")
    refused = committed_progress_of(found(committed=150, metadata=metadata, record=record, more=(expired,)))
    assert isinstance(refused, Refuse)
    assert "app-commits lost its last records" in refused.reason
    assert "--to-offset" not in refused.remedy


@pytest.mark.parametrize(("low", "refused"), [(99, False), (100, False), (101, True)])
def test_should_refuse_when_the_next_records_are_deleted(low, refused):
    plan = plan_start(found(record=a_record(), copies=(a_copy(),), source=Watermarks(low, 500)))
    assert isinstance(plan, Refuse) is refused
    if refused:
        assert "pulse-events[2]" in plan.reason
        assert "tidemark reset run NAME --to offsets --state keep --offset pulse-events:2=101`" in plan.remedy


@pytest.mark.parametrize(("end", "refused"), [(99, True), (100, False), (101, False)])
def test_should_refuse_when_the_source_ends_before_what_was_processed(end, refused):
    plan = plan_start(found(record=a_record(), copies=(a_copy(),), source=Watermarks(0, end)))
    assert isinstance(plan, Refuse) is refused


@pytest.mark.parametrize("watermarks", [Watermarks(101, 500), Watermarks(0, 99)])
def test_should_not_advise_to_give_an_offset_of_a_topic_between_sub_topologies(watermarks):
    at = TopicPartition("app-by-ward-repartition", 2)
    record = dataclasses.replace(a_record(), sources={at.topic: {2: (50, 100)}})
    own = dataclasses.replace(found(record=record), sources=(SourceEvidence(at, 100, watermarks, 0),))
    refused = committed_progress_of(own)
    assert isinstance(refused, Refuse)
    assert f"--offset {at.topic}" not in refused.remedy
    assert "`tidemark reset run NAME --to offsets --state keep --offset TOPIC:PARTITION=OFFSET`" in refused.remedy


@pytest.mark.parametrize(("low", "kind"), [(59, TAIL), (60, TAIL), (61, WHOLE)])
def test_should_not_replay_a_tail_whose_first_records_are_deleted(low, kind):
    """Retention may have deleted the records that came after a savepoint."""
    copies = (a_copy(99, kind=SourceOfState.SAVEPOINT),)
    plan = plan_start(found(record=a_record(), copies=copies, changelog=Watermarks(low, 90)))
    assert way_of(plan) == kind


@pytest.mark.parametrize("offset", [99, 100])
@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        (Watermarks(0, 59), "ends at offset 59, but was written up to 60"),
        (Watermarks(0, 60), None),
        (Watermarks(60, 90), None),
        (Watermarks(61, 90), "begins at offset 61: everything up to offset 60 was deleted"),
    ],
)
def test_should_refuse_a_truncated_changelog_even_when_a_store_is_up_to_date(offset, changelog, said):
    plan = plan_start(found(record=a_record(), copies=(a_copy(offset),), changelog=changelog))
    assert isinstance(plan, Refuse) is (said is not None)
    if said:
        assert said in plan.reason
        assert "tidemark repair run NAME" in plan.remedy


@pytest.mark.parametrize("offset", [99, 100])
@pytest.mark.parametrize("store_retention", [None, 6 * HOUR])
@pytest.mark.parametrize(("low", "is_damaged"), [(0, False), (1, True), (60, True), (61, True)])
def test_should_refuse_a_compacted_changelog_without_its_first_records_even_when_a_store_is_up_to_date(
    offset, store_retention, low, is_damaged
):
    """Only a person can delete there, and keys that were not written again since are in no changelog any more."""
    kept = {"store_retention_ms": store_retention, "changelog_retention_ms": None}
    evidence = found(record=a_record(), copies=(a_copy(offset),), changelog=Watermarks(low, 90), **kept)
    plan = plan_start(evidence)
    assert isinstance(plan, Refuse) is is_damaged
    if is_damaged:
        said = "has lost its beginning, up to offset" if low <= 60 else "begins at offset"
        assert f"{CHANGELOG} {said} {low}" in plan.reason
        assert plan.remedy == CHANGELOG_REMEDY
    # Windows expire in a changelog that also deletes, and a table's topic is its owner's to shorten.
    expiring = found(record=a_record(), copies=(a_copy(offset),), changelog=Watermarks(min(low, 60), 90))
    assert isinstance(plan_start(expiring), Resume)
    owned = found(record=a_record(), copies=(a_copy(offset),), changelog=Watermarks(low, 90), is_source=True, **kept)
    assert isinstance(plan_start(owned), Resume)


@pytest.mark.parametrize(("age_ms", "refused"), [(18 * HOUR - 1, True), (18 * HOUR, False)])
def test_should_accept_that_retention_deletes_everything_an_idle_application_has_written(age_ms, refused):
    """The changelog is kept for 30 hours, and the clock of this machine may be 12 hours behind the brokers'."""
    record = dataclasses.replace(a_record(), commit_time_ms=NOW - age_ms)
    evidence = found(record=record, copies=(a_copy(100, age_ms=age_ms),), changelog=Watermarks(61, 61))
    assert way_of(plan_start(evidence)) == (Refuse if refused else READY)


def test_should_refuse_when_the_changelog_no_longer_has_what_the_last_commit_wrote():
    record = dataclasses.replace(a_record(), ends_before={CHANGELOG.topic: {CHANGELOG.partition: 95}})
    plan = plan_start(found(record=record, copies=(a_copy(100),)))
    assert isinstance(plan, Refuse)
    assert "ends at offset 90, but was written up to 95" in plan.reason


def remade(use: TopicUse, topic: str, found_id: str | None = "second") -> LostTopic:
    return LostTopic(topic, use, "first", found_id)


def with_store(evidence: TaskEvidence, **changed) -> TaskEvidence:
    return dataclasses.replace(evidence, stores=(dataclasses.replace(evidence.stores[0], **changed),))


@pytest.mark.parametrize(
    ("found_id", "said"), [(None, "was deleted: this lost"), ("second", "was deleted and created again")]
)
def test_should_refuse_a_changelog_that_is_another_topic_when_a_store_is_up_to_date(found_id, said):
    lost = remade(TopicUse.CHANGELOG, CHANGELOG.topic, found_id)
    whole = found(record=a_record(), copies=(a_copy(100),))
    assert way_of(plan_start(whole)) == READY
    plan = plan_start(with_store(whole, lost=lost))
    assert isinstance(plan, Refuse)
    assert f"changelog {CHANGELOG.topic} {said}" in plan.reason
    assert "tidemark repair run NAME" in plan.remedy
    assert "tidemark reset run NAME" in plan.remedy


def test_should_restore_only_from_an_up_to_date_copy_when_the_changelog_is_lost():
    lost = remade(TopicUse.CHANGELOG, CHANGELOG.topic)

    def kind_of(*copies: StateCopy) -> SourceOfState | None:
        evidence = with_store(found(record=a_record(), copies=copies), lost=lost)
        candidate = best_candidate(evidence, evidence.stores[0], committed_progress_of(evidence), MEASURED, None)
        return None if isinstance(candidate, Refuse) else candidate.kind

    assert kind_of(a_copy(100)) is SourceOfState.LOCAL
    assert kind_of(a_copy(99)) is None
    assert kind_of(a_copy(99), a_copy(100, kind=SourceOfState.SAVEPOINT)) is SourceOfState.SAVEPOINT
    assert kind_of() is None


@pytest.mark.parametrize(
    ("planned", "changelog_low", "taken"),
    [(None, 0, "new"), ("old", 0, "old"), ("old", 60, "old"), ("old", 61, "new"), ("gone", 0, "new")],
)
def test_should_use_the_planned_copy_unless_it_has_a_fault(planned, changelog_low, taken):
    copies = tuple(
        dataclasses.replace(a_copy(99, changelog_offset, kind=SourceOfState.SAVEPOINT), location=location)
        for location, changelog_offset in (("new", 89), ("old", 60))
    )
    evidence = found(record=a_record(), copies=copies, changelog=Watermarks(changelog_low, 90))
    committed = committed_progress_of(evidence)
    candidate = best_candidate(evidence, evidence.stores[0], committed, MEASURED, SourceOfState.SAVEPOINT, planned)
    assert candidate.location == taken


OPEN = "make a new plan without `--from`, or with `fastest` as `source` of the DAG: it may use another source"
NOTHING = "start from nothing under another application id"


@pytest.mark.parametrize(
    ("asked", "copies", "changelog_low", "remedy"),
    [
        (SourceOfState.STANDBY, (), 0, OPEN),
        (SourceOfState.SAVEPOINT, (a_copy(99),), 0, OPEN),
        (SourceOfState.CHANGELOG, (a_copy(99),), 1, OPEN),
        (SourceOfState.STANDBY, (), 1, NOTHING),
        (None, (), 1, NOTHING),
    ],
)
def test_should_leave_the_source_open_when_the_requested_one_cannot_be_used_but_another_can(
    asked, copies, changelog_low, remedy
):
    """It names none: the copies of a requested kind are not marked as suspected, and a new plan may rule them out."""
    evidence = found(
        record=a_record(), copies=copies, changelog=Watermarks(changelog_low, 90), changelog_retention_ms=None
    )
    refused = best_candidate(evidence, evidence.stores[0], committed_progress_of(evidence), MEASURED, asked)
    assert isinstance(refused, Refuse)
    assert remedy in refused.remedy
    assert (NOTHING in refused.remedy) == (remedy == NOTHING)


@pytest.mark.parametrize("use", [TopicUse.SOURCE, TopicUse.REPARTITION])
def test_should_refuse_a_source_that_is_another_topic_whatever_its_offsets(use):
    evidence = found(record=a_record(), copies=(a_copy(100),))
    lost = dataclasses.replace(evidence.sources[0], lost=remade(use, SOURCE.topic))
    plan = plan_start(dataclasses.replace(evidence, sources=(lost,)))
    assert isinstance(plan, Refuse)
    assert f"{use.value} {SOURCE.topic} was deleted and created again" in plan.reason
    assert "tidemark reset run NAME" in plan.remedy


def unlogged(batch: int, offset: int = 100, layout: str = LAYOUT) -> StoreCheckpoint:
    return dataclasses.replace(a_copy(offset, layout=layout).checkpoint, batch=batch, changelog_offset=0)


AT_7 = CommittedProgress({"pulse-events": 100}, 7, StreamTimes.none())
FRESH = CommittedProgress({"pulse-events": 100}, -1, StreamTimes.none())


@pytest.mark.parametrize(
    ("checkpoint", "committed", "said"),
    [
        (unlogged(7), AT_7, None),
        # A tick moves no offset: the crash came between its steps 6 and 7.
        (unlogged(6), AT_7, "its folder holds batch 6, while the last commit is batch 7"),
        (unlogged(8), AT_7, "its folder holds batch 8"),
        (unlogged(7, offset=99), AT_7, "its folder holds batch 7"),
        (unlogged(7, layout="3:pulses=sum<f8"), AT_7, "its folder holds values of layout 3:pulses=sum<f8"),
        (None, AT_7, "its folder holds nothing that was committed"),
        # Its topics are gone, and somebody chose the same offset.
        (unlogged(7), FRESH, "its folder holds batch 7, while nothing was ever committed"),
        (unlogged(0), FRESH, "its folder holds batch 0, while nothing was ever committed"),
    ],
)
def test_should_keep_an_unlogged_store_only_when_its_batch_is_that_of_the_last_commit(checkpoint, committed, said):
    fault = unlogged_fault(checkpoint, LAYOUT, committed, a_record())
    assert (fault is None) is (said is None)
    assert (said or "") in (fault or "")


@pytest.mark.parametrize(
    ("kind", "batch", "is_kept"),
    [
        (CommitKind.UPGRADE, 7, True), (CommitKind.UPGRADE, 6, True), (CommitKind.UPGRADE, 5, False),
        (CommitKind.REPAIR, 7, True), (CommitKind.REPAIR, 6, True), (CommitKind.REPAIR, 5, False),
        (CommitKind.RESET, 6, False), (CommitKind.TICK, 6, False),
    ],
)  # fmt: skip
def test_should_keep_an_unlogged_store_after_a_commit_that_did_not_change_it(kind, batch, is_kept):
    record = dataclasses.replace(a_record(), kind=kind)
    assert (unlogged_fault(unlogged(batch), LAYOUT, AT_7, record) is None) is is_kept


@pytest.mark.parametrize(
    ("kind", "written", "source", "expected"),
    [
        (CommitKind.REPAIR, True, SourceOfState.LOCAL, READY),
        (CommitKind.UPGRADE, True, SourceOfState.LOCAL, READY),
        (CommitKind.REPAIR, True, SourceOfState.STANDBY, TAIL),  # It may have followed what a stranger wrote.
        (CommitKind.REPAIR, True, SourceOfState.SAVEPOINT, TAIL),
        (CommitKind.REPAIR, False, SourceOfState.SAVEPOINT, READY),  # The repair was of another store.
        (CommitKind.UPGRADE, False, SourceOfState.SAVEPOINT, READY),
        (CommitKind.RESET, False, SourceOfState.LOCAL, TAIL),
        (CommitKind.BATCH, False, SourceOfState.LOCAL, TAIL),
    ],
)
def test_should_treat_a_copy_as_up_to_date_after_a_commit_that_did_not_change_it(kind, written, source, expected):
    # With no keys of its own a repair names what the one before it wrote to.
    changelogs = {CHANGELOG.topic: 0} if written else {}
    record = dataclasses.replace(a_record(), kind=kind, batch=8, changelogs=changelogs)
    assert way_of(plan_start(found(record=record, copies=(a_copy(kind=source),)))) == expected


@pytest.mark.parametrize(
    ("changelog_offset", "layout", "application_id", "is_whole"),
    [
        (63, LAYOUT, "app", True),
        (64, LAYOUT, "app", True),
        (62, LAYOUT, "app", False),
        (63, "other", "app", False),
        (63, LAYOUT, "another", False),
    ],
)
def test_should_know_whether_a_standbys_copy_includes_the_last_commit(
    changelog_offset, layout, application_id, is_whole
):
    copy = a_copy(-1, changelog_offset, kind=SourceOfState.STANDBY, layout=layout, application_id=application_id)
    record = dataclasses.replace(
        a_record(), ends_before={CHANGELOG.topic: {2: 60, 1: 99}}, changelogs={CHANGELOG.topic: 3}
    )
    evidence = found(record=record, copies=(copy,))
    assert holds_last_commit(copy, evidence, evidence.stores[0]) is is_whole
    unknown = dataclasses.replace(evidence, last_record=dataclasses.replace(record, ends_before={}))
    assert not holds_last_commit(copy, unknown, evidence.stores[0])


@pytest.mark.parametrize(
    ("kind", "appended", "end"),
    [
        (CommitKind.UPGRADE, False, 60),
        (CommitKind.RESCALE, False, 60),
        (CommitKind.RESET, False, 60),
        (CommitKind.REPAIR, False, 60),
        (CommitKind.REPAIR, True, 63),
        (CommitKind.BATCH, False, 63),
    ],
)
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_should_know_that_a_standbys_copy_includes_what_a_command_filled_a_new_changelog_with(
    kind, appended, end, beyond
):
    """The record of such a command has the end of the changelog after it was filled."""
    copy = a_copy(-1, end + beyond, kind=SourceOfState.STANDBY)
    record = dataclasses.replace(
        a_record(), kind=kind, ends_before={CHANGELOG.topic: {2: 60}}, changelogs={CHANGELOG.topic: 3},
        appended=(CHANGELOG.topic,) if appended else (),
    )  # fmt: skip
    evidence = found(record=record, copies=(copy,))
    assert holds_last_commit(copy, evidence, evidence.stores[0]) is (beyond >= 0)


@pytest.mark.parametrize(("age", "kind"), [(24 * HOUR - 1, TAIL), (24 * HOUR, WHOLE), (24 * HOUR + 1, WHOLE)])
def test_should_not_use_a_copy_older_than_the_tombstones(age, kind):
    plan = plan_start(found(record=a_record(), copies=(a_copy(99, age_ms=age),)))
    assert way_of(plan) == kind


@pytest.mark.parametrize(("behind", "refused"), [(24 * HOUR - 1, False), (24 * HOUR, True), (24 * HOUR + 1, True)])
def test_should_refuse_a_whole_restore_when_live_windows_may_be_deleted(behind, refused):
    """With 30 h of broker retention and 6 h of store retention, stream time may be 24 h behind the wall clock."""
    evidence = found(record=a_record(stream_time_ms=NOW - behind), changelog=Watermarks(1, 90))
    assert isinstance(plan_start(evidence), Refuse) is refused


def test_should_restore_a_whole_changelog_of_any_age_when_nothing_was_ever_deleted():
    plan = plan_start(found(record=a_record(stream_time_ms=0), changelog=Watermarks(0, 90)))
    assert way_of(plan) == WHOLE
    assert plan.stores["counts"].from_offset == 0


def test_should_prefer_the_newest_copy_and_among_equals_the_local_one():
    standby = a_copy(99, changelog_offset=80, kind=SourceOfState.STANDBY)
    local = a_copy(98, changelog_offset=70)
    savepoint = a_copy(99, changelog_offset=80, kind=SourceOfState.SAVEPOINT)
    plan = plan_start(found(record=a_record(), copies=(savepoint, local, standby)))
    assert isinstance(plan, Resume)
    assert (plan.stores["counts"].copy, plan.stores["counts"].from_offset) == (standby, 80)


def test_should_not_treat_a_store_from_before_a_rewind_as_up_to_date_even_when_its_offsets_match():
    copy = a_copy(100)
    before = dataclasses.replace(copy, checkpoint=dataclasses.replace(copy.checkpoint, batch=6))
    assert way_of(plan_start(found(record=a_record(), copies=(copy,)))) == READY
    assert way_of(plan_start(found(record=a_record(), copies=(before,)))) == TAIL


def test_should_compare_the_cost_of_fetching_a_copy_with_that_of_reading_the_changelog():
    """Compares 10 MB of savepoint plus 10 offsets of tail with 90 offsets of changelog."""
    savepoint = a_copy(99, changelog_offset=80, kind=SourceOfState.SAVEPOINT)
    savepoint = dataclasses.replace(savepoint, bytes_to_copy=10_000_000)
    evidence = found(record=a_record(), copies=(savepoint,))
    slow_reading, slow_copying = Rates(1, 10_000_000), Rates(1_000, 10_000)
    assert plan_start(evidence, slow_reading).stores["counts"].kind is SourceOfState.SAVEPOINT
    assert plan_start(evidence, slow_reading).stores["counts"].eta_s == pytest.approx(11)
    assert plan_start(evidence, slow_copying).stores["counts"].kind is SourceOfState.CHANGELOG


@pytest.mark.parametrize(("end", "refused"), [(89, True), (90, False)])
def test_should_refuse_a_changelog_that_ends_before_the_recorded_offset(end, refused):
    """The topic was created again: reading all of it would build a store without the earlier keys."""
    record = dataclasses.replace(a_record(), ends_before={CHANGELOG.topic: {CHANGELOG.partition: 90}})
    plan = plan_start(found(record=record, changelog=Watermarks(0, end)))
    assert way_of(plan) == (Refuse if refused else WHOLE)


@pytest.mark.parametrize(
    ("kind", "appended", "end", "refused"),
    [
        (CommitKind.BATCH, False, 109, True),
        (CommitKind.BATCH, False, 110, False),
        (CommitKind.BATCH, False, 111, False),
        (CommitKind.TICK, False, 109, True),
        (CommitKind.TICK, False, 110, False),
        (CommitKind.REWIND, False, 109, True),
        (CommitKind.REWIND, False, 110, False),
        # It has written some keys to a changelog that stays.
        (CommitKind.REPAIR, True, 109, True),
        (CommitKind.REPAIR, True, 110, False),
        # These have copied whole stores into new changelogs before they asked for the ends.
        *(
            (kind, False, 80, False)
            for kind in (CommitKind.UPGRADE, CommitKind.RESCALE, CommitKind.RESET, CommitKind.REPAIR)
        ),
    ],
)
@pytest.mark.parametrize("copies", [(), (a_copy(99),)])
def test_should_refuse_a_changelog_that_lost_what_the_last_commit_wrote_though_no_store_is_up_to_date(
    kind, appended, end, refused, copies
):
    record = dataclasses.replace(
        a_record(),
        kind=kind,
        changelogs={CHANGELOG.topic: 30},
        ends_before={CHANGELOG.topic: {CHANGELOG.partition: 80}},
        appended=(CHANGELOG.topic,) if appended else (),
    )
    plan = plan_start(found(record=record, copies=copies, changelog=Watermarks(0, end)))
    assert isinstance(plan, Refuse) is refused
    if refused:
        assert f"ends at offset {end}, but was written up to 110" in plan.reason


@pytest.mark.parametrize(("store_retention", "changelog_retention"), [(None, None), (None, HOUR), (HOUR, None)])
def test_should_refuse_a_changelog_without_its_first_records_when_nothing_expires_in_its_store(
    store_retention, changelog_retention
):
    kept = {"store_retention_ms": store_retention, "changelog_retention_ms": changelog_retention}
    plan = plan_start(found(record=a_record(), changelog=Watermarks(1, 90), **kept))
    assert isinstance(plan, Refuse)
    assert "has lost its beginning" in plan.reason
    assert way_of(plan_start(found(record=a_record(), changelog=Watermarks(0, 90), **kept))) == WHOLE
    # What a table's topic has lost, its owner has deleted.
    assert way_of(plan_start(found(record=a_record(), changelog=Watermarks(1, 90), is_source=True, **kept))) == WHOLE


def test_should_recompute_from_the_sources_only_when_asked_to():
    evidence = found(record=a_record(), source=SOURCE_500)
    assert way_of(plan_start(evidence)) == WHOLE
    candidate = plan_start(evidence, only=SourceOfState.SOURCE).stores["counts"]
    assert (candidate.kind, candidate.copy, candidate.from_offset, candidate.end_offset) == (
        SourceOfState.SOURCE,
        None,
        0,
        100,
    )
    assert candidate.eta_s == pytest.approx(MEASURED.spark_start_s + 100 / MEASURED.source_offsets_per_s)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"not_recomputable_reason": "it is windowed"},
            "cannot be computed from its source topics alone: it is windowed",
        ),
        ({"source": Watermarks(1, 500)}, "has lost its beginning, up to offset 1"),
        ({"more": (SourceEvidence(TopicPartition("rates", 2), 100, SOURCE_500, 500),)}, "auto_offset_reset is latest"),
        ({"more": (SourceEvidence(TopicPartition("rates", 2), 100, SOURCE_500, 0, True),)}, "rates is compacted"),
    ],
)
def test_should_refuse_to_recompute_from_sources_that_do_not_hold_everything(changed, reason):
    record = a_record()
    if "more" in changed:
        record = dataclasses.replace(record, sources={**record.sources, "rates": {2: (0, 100)}})
    plan = plan_start(found(record=record, **{"source": SOURCE_500, **changed}), only=SourceOfState.SOURCE)
    assert isinstance(plan, Refuse)
    assert reason in plan.reason


@pytest.mark.parametrize("only", [SourceOfState.CHANGELOG, SourceOfState.LOCAL, SourceOfState.SAVEPOINT])
def test_should_use_the_requested_source_of_state_or_refuse(only):
    plan = plan_start(found(record=a_record(), copies=(a_copy(100),)), only=only)
    if only is SourceOfState.SAVEPOINT:
        assert isinstance(plan, Refuse)
        assert "savepoint" in plan.reason
    else:
        assert plan.stores["counts"].kind is only


def test_should_ignore_a_copy_that_is_ahead_unless_it_is_the_local_store():
    ahead = a_copy(101, kind=SourceOfState.SAVEPOINT)
    plan = plan_start(found(record=a_record(), copies=(ahead, a_copy(99))))
    assert way_of(plan) == TAIL


def test_should_ignore_a_copy_of_another_application():
    plan = plan_start(found(record=a_record(), copies=(a_copy(100, application_id="other"),)))
    assert way_of(plan) == WHOLE


def test_should_refuse_values_of_another_layout_and_name_both_layouts():
    plan = plan_start(found(record=a_record(), copies=(a_copy(layout="3:pulses=sum<f8"),)))
    assert isinstance(plan, Refuse)
    assert "3:pulses=sum<f8" in plan.reason
    assert LAYOUT in plan.reason


TEMPERATURE = TopicPartition("temperature", 2)


def a_second_source(committed: int | None = 30, end: int = 40) -> SourceEvidence:
    return SourceEvidence(TEMPERATURE, committed, Watermarks(0, end), 0)


def a_record_of_two() -> CommitRecord:
    return dataclasses.replace(a_record(), sources={"pulse-events": {2: (50, 100)}, "temperature": {2: (20, 30)}})


def a_copy_of_two(pulse: int, temperature: int) -> StateCopy:
    copy = a_copy(pulse)
    offsets = {"pulse-events": pulse, "temperature": temperature}
    return dataclasses.replace(copy, checkpoint=dataclasses.replace(copy.checkpoint, source_offsets=offsets))


@pytest.mark.parametrize(
    ("pulse", "temperature", "kind"),
    [(100, 30, READY), (100, 29, TAIL), (99, 30, TAIL), (100, 31, Refuse), (99, 31, Refuse)],
)
def test_should_compare_every_source_of_a_task_that_reads_two(pulse, temperature, kind):
    evidence = found(record=a_record_of_two(), copies=(a_copy_of_two(pulse, temperature),), more=(a_second_source(),))
    assert way_of(plan_start(evidence)) == kind


def test_should_refuse_when_somebody_moved_the_offsets_of_the_second_source():
    plan = plan_start(found(record=a_record_of_two(), more=(a_second_source(committed=29),)))
    assert isinstance(plan, Refuse)
    assert "temperature[2]" in plan.reason
    assert "--topic temperature:2 --reset-offsets --to-offset 30" in plan.remedy


def test_should_refuse_a_source_that_the_last_commit_did_not_know():
    plan = plan_start(found(record=a_record(), more=(a_second_source(),)))
    assert isinstance(plan, Refuse)
    assert "temperature[2]" in plan.reason


@pytest.mark.parametrize("committed", [99, 100, None])
def test_should_continue_from_offsets_behind_the_commit_record_under_at_least_once(committed):
    """The record is written before the offsets: a crash between the two must neither cause a refusal nor lose records."""
    metadata = OffsetMetadata(6, times(NOW - 5), "1")
    record = dataclasses.replace(a_record(100), guarantee=Guarantee.AT_LEAST_ONCE)
    plan = plan_start(found(committed=committed, metadata=metadata, record=record))
    assert isinstance(plan, Resume)
    assert plan.committed.next_offsets == {"pulse-events": committed or 100}
    assert plan.committed.batch == (6 if committed == 99 else 7)


@pytest.mark.parametrize(
    ("ahead_ms", "retention_ms", "candidate"), [(0, 6 * HOUR, TAIL), (1, 6 * HOUR, WHOLE), (1, None, TAIL)]
)
def test_should_ignore_a_copy_in_which_more_windows_have_expired_than_was_committed(ahead_ms, retention_ms, candidate):
    """After a rewind such windows are live again, and the tail holds only what differs."""
    copy = a_copy(99, kind=SourceOfState.STANDBY)
    copy = dataclasses.replace(copy, checkpoint=dataclasses.replace(copy.checkpoint, stream_time_ms=NOW + ahead_ms))
    assert way_of(plan_start(found(record=a_record(), copies=(copy,), store_retention_ms=retention_ms))) == candidate


@pytest.mark.parametrize("copies", [(), (a_copy(99),), (a_copy(100),)], ids=["lost", "behind", "level"])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_should_refuse_a_changelog_that_lost_records_too_young_for_its_retention(copies, over):
    evidence = found(record=a_record(), copies=copies, changelog=Watermarks(40 + over, 90), young_offset=40)
    plan = plan_start(evidence)
    assert isinstance(plan, Refuse if over > 0 else Resume)
    assert over <= 0 or "from offset 40 on are too young" in plan.reason

"""Plans of repairs: what fits into one transaction, and what they say of stores that the user's functions compute again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tidemark.commit.record import CommitKind, commit_record
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.current_state import ApplicationState
from tidemark.operations.change.repair import Repair, _Part
from tidemark.operations.change.repair_plan import (
    MOST_BYTES_IN_PLACE,
    MOST_KEYS_IN_PLACE,
    DifferingKeys,
    StoreRepair,
    TaskRepair,
    needs_new_changelog,
)
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.stream_times import StreamTimes
from tidemark.topology.builder import Topology

KEEP = "tests.support.reducers:keep_the_later"
APPEND, START = "tests.support.reducers:append", "tests.support.reducers:nothing_seen"
TASK = TaskRepair("0_0", SourceOfState.LOCAL, "here", is_judge=True, differing=1)


def planned(source, fold):
    topology = Topology("app")
    fold(topology.stream("in", schema="id STRING, v BIGINT", key="id").group_by_key()).to("out")
    plan = topology.plan()
    repair = Repair(plan, None, lambda: 0, [], source, None, [].append, [].append)
    summary = TaskRepair("0_0", source or SourceOfState.LOCAL, "somewhere", is_judge=True, differing=0)
    return repair._planned(plan, [_Part(TaskId(0, 0), plan.stores[0], None, summary)])


def reduced(grouped):
    return grouped.reduce(KEEP, store="s")


def aggregated(grouped):
    return grouped.aggregate(aggregator=APPEND, initializer=START, emits="seen STRING", store="s")


def counted(grouped):
    return grouped.count(name="n", store="s")


@pytest.mark.parametrize(("fold", "functions"), [(reduced, [KEEP]), (aggregated, [APPEND, START])])
def test_should_warn_that_the_code_of_functions_may_have_changed_since_the_records_were_processed(fold, functions):
    (warning,) = planned(SourceOfState.SOURCE, fold).warnings
    assert warning.startswith(f"s: computed again with the present code of {', '.join(functions)}; whether")


@pytest.mark.parametrize(
    ("source", "fold"), [(SourceOfState.SOURCE, counted), (None, reduced), (SourceOfState.LOCAL, aggregated)]
)
def test_should_not_warn_where_no_function_computes_what_is_right(source, fold):
    assert planned(source, fold).warnings == []


@pytest.mark.parametrize(
    ("keys", "size_bytes", "is_new"),
    [
        (0, 0, False),
        (1, MOST_BYTES_IN_PLACE - 1, False),
        (1, MOST_BYTES_IN_PLACE, False),
        (1, MOST_BYTES_IN_PLACE + 1, True),
        (MOST_KEYS_IN_PLACE, 1, False),
        (MOST_KEYS_IN_PLACE + 1, 1, True),
    ],
)
def test_should_write_a_new_changelog_when_the_keys_do_not_fit_into_one_transaction(keys, size_bytes, is_new):
    task = replace(TASK, differing=keys, differing_bytes=size_bytes)
    assert needs_new_changelog([task], []) is is_new
    halves = [replace(task, differing=half, differing_bytes=0) for half in (keys // 2, keys - keys // 2)]
    assert needs_new_changelog([halves[0], replace(halves[1], differing_bytes=size_bytes)], []) is is_new


def test_should_count_what_is_written_into_other_changelogs_in_the_same_transaction():
    half = replace(TASK, differing_bytes=MOST_BYTES_IN_PLACE // 2)
    others = [StoreRepair("m", "app-m-changelog", (half,), is_new=False)]
    assert needs_new_changelog([half], others) is False
    assert needs_new_changelog([half], [*others, *others]) is True


def test_should_write_a_new_changelog_for_one_that_is_damaged_or_judged_by_another_copy_and_know_nothing_before():
    assert needs_new_changelog([replace(TASK, damaged="it was deleted")], []) is True
    assert needs_new_changelog([replace(TASK, source=SourceOfState.SOURCE)], []) is True
    assert needs_new_changelog([replace(TASK, is_alone=False)], []) is True
    assert needs_new_changelog([replace(TASK, differing=None)], []) is None


def test_should_keep_no_more_differing_keys_than_one_transaction_holds():
    found = DifferingKeys()
    value = bytes(1 << 20)
    found.add([(b"key", value), (b"gone", None)])
    assert found.values == [{"key": b"key", "value": value}, {"key": b"gone", "value": None}]
    assert found.size_bytes == 7 + len(value)
    found.add([(b"%d" % number, value) for number in range(20)])
    assert found.values == []
    assert found.size_bytes > 20 * len(value)


@pytest.mark.parametrize(
    ("kind", "appended", "end"),
    [
        (CommitKind.UPGRADE, (), 60),
        (CommitKind.REPAIR, (), 60),
        (CommitKind.REPAIR, ("filled",), 63),
        (CommitKind.BATCH, (), 63),
    ],
)
def test_should_write_for_a_damaged_changelog_the_end_that_it_had_after_the_last_commit(kind, appended, end):
    """A command that filled it took its end afterwards. A changelog that the commit does not name has no known end."""
    task = TaskId(0, 1)
    record = commit_record(
        kind, "app", "1", task, 7, 0, spans={}, stream_times=StreamTimes.none(), appended=appended,
        changelogs={"filled": 3}, ends_before={"filled": {0: 99, 1: 60}, "idle": {1: 5}, "of another task": {0: 8}},
    )  # fmt: skip
    state = ApplicationState(None, None, {task: SimpleNamespace(facts=SimpleNamespace(record=record))}, {})
    assert state.written_ends(task, ["filled", "idle", "of another task", "unknown"]) == {
        TopicPartition("filled", 1): end,
        TopicPartition("idle", 1): 5,
    }

"""`tidemark stores`: sizes of real stores and of a real changelog, and the growth between samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.cli_stores import CHECKPOINT, HOUR_MS, put, store_at

from tidemark.checks.store_growth import StoreSample, append, growth, history_path, read
from tidemark.errors import TidemarkError
from tidemark.folder_lock import FolderLock
from tidemark.names import TaskId, TopicPartition
from tidemark.overview.stores import read_stores
from tidemark.settings import Settings
from tidemark.store_sizes import KnownSizes, StoreCopy, copies_on_disk, estimated_keys, folder_bytes, parse_log_dirs
from tidemark.stores.protocol import Writes
from tidemark.topology.builder import Topology
from tidemark.topology.plan import StoreKind, StoreSpec

SPEC = StoreSpec("n", StoreKind.KEY_VALUE, None, None)


def sample(time_ms, keys=None, bytes_topic=None, store="n", task="0_0", holder="0"):
    return StoreSample(time_ms, "app", task, store, holder, keys, 100, 10, bytes_topic)


def plan_of_n():
    topology = Topology("app")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store="n")
    return topology.plan()


def replica(name, size, is_future=False):
    return {"partition": name, "size": size, "offsetLag": 0, "isFuture": is_future}


def test_should_add_up_the_keys_of_all_segments_while_the_owner_holds_the_lock(tmp_path):
    store = store_at(tmp_path)
    put(store, 0, range(30))
    put(store, 1, range(12))
    before = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert estimated_keys(tmp_path) == KnownSizes(42)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == before
    assert folder_bytes(tmp_path) == sum(before.values())
    put(store, 2, range(3))
    assert estimated_keys(tmp_path) == KnownSizes(45)
    store.close()


def test_should_retry_when_files_change_during_the_reading_and_then_say_so(tmp_path):
    left = [TidemarkError("gone"), TidemarkError("gone"), 7]

    def count(_):
        answer = left.pop(0)
        if isinstance(answer, TidemarkError):
            raise answer
        return answer

    assert estimated_keys(tmp_path, count) == KnownSizes(7)
    assert estimated_keys(tmp_path) == KnownSizes(None, "unreadable")


def test_should_find_every_local_copy_of_the_given_task_and_application_only(tmp_path):
    for holder, app, task, store in (
        ("0", "app", "0_1", "n"), ("standby-0", "app", "0_1", "n"), ("0", "app", "0_11", "n"),
        ("0", "app-2", "0_1", "n"), ("0", "app", "0_1", "n.restoring"),
    ):  # fmt: skip
        made = store_at(tmp_path / holder / app / task / "rocksdb" / store)
        put(made, 0, range(5))
        made.close()
    assert [(copy.holder, copy.keys) for copy in copies_on_disk(tmp_path, "app", TaskId(0, 1), SPEC)] == [
        ("0", KnownSizes(5)), ("standby-0", KnownSizes(5)),
    ]  # fmt: skip


def test_should_say_why_a_store_has_no_keys_to_count(tmp_path):
    custom = StoreSpec("own", StoreKind.KEY_VALUE, None, None, custom="package.module:Class")
    (tmp_path / "0" / "app" / "0_0" / "rocksdb" / "own").mkdir(parents=True)
    (tmp_path / "0" / "app" / "0_0" / "rocksdb" / "own" / "store.sqlite").write_bytes(b"123")
    (copy,) = copies_on_disk(tmp_path, "app", TaskId(0, 0), custom)
    assert copy == StoreCopy("0", KnownSizes(None, "custom"), KnownSizes(3))
    memory = StoreSpec("m", StoreKind.KEY_VALUE, None, None, in_memory=True)
    for spec, why in ((memory, "in memory"), (SPEC, "not here")):
        unknown = KnownSizes(None, why)
        assert copies_on_disk(tmp_path, "app", TaskId(0, 0), spec) == [StoreCopy(None, unknown, unknown)]


def copy_at(state_dir, holder, batch):
    """The copy of an instance or a standby that processed the task up to this batch."""
    made = store_at(state_dir / holder / "app" / "0_1" / "rocksdb" / "n")
    made.put_many([Writes(0, [b"k"], [b"v"])], replace(CHECKPOINT, batch=batch), None)
    made.close()


@pytest.mark.parametrize(
    ("batches", "old"),
    [
        ({"0": 6, "1": 7}, {"0"}),
        ({"0": 7, "1": 6}, {"1"}),
        ({"0": 7, "1": 7}, set()),
        ({"0": 5, "1": 6, "2": 7, "standby-0": -1}, {"0", "1"}),
        # A standby knows no batches.
        ({"0": 6, "standby-0": -1}, set()),
    ],
)
def test_should_call_the_copy_old_that_an_instance_kept_when_its_task_moved(tmp_path, batches, old):
    for holder, batch in batches.items():
        copy_at(tmp_path, holder, batch)
    copies = copies_on_disk(tmp_path, "app", TaskId(0, 1), SPEC)
    assert {copy.holder: copy.is_old for copy in copies} == {holder: holder in old for holder in batches}
    plan = plan_of_n()
    rows = read_stores(plan, Settings.load().model_copy(update={"state_dir": tmp_path}))
    assert {row.holder for row in rows if row.is_counted} == batches.keys() - old - {"standby-0"}


def test_should_call_the_other_copy_of_a_custom_store_old_while_an_instance_has_the_task(tmp_path):
    custom = StoreSpec("n", StoreKind.KEY_VALUE, None, None, custom="package.module:Class")
    folders = [tmp_path / holder / "app" / "0_1" for holder in ("0", "1")]
    for folder in folders:
        (folder / "rocksdb" / "n").mkdir(parents=True)
    assert [copy.is_old for copy in copies_on_disk(tmp_path, "app", TaskId(0, 1), custom)] == [False, False]
    with FolderLock(folders[1]):
        assert [copy.is_old for copy in copies_on_disk(tmp_path, "app", TaskId(0, 1), custom)] == [True, False]


def test_should_call_no_copy_old_beside_one_that_cannot_be_read(tmp_path):
    copy_at(tmp_path, "0", 7)
    unreadable = tmp_path / "1" / "app" / "0_1"
    (unreadable / "rocksdb" / "n").mkdir(parents=True)
    assert [copy.is_old for copy in copies_on_disk(tmp_path, "app", TaskId(0, 1), SPEC)] == [False, False]
    with FolderLock(unreadable):
        assert [copy.is_old for copy in copies_on_disk(tmp_path, "app", TaskId(0, 1), SPEC)] == [True, False]


def test_should_take_the_largest_replica_and_ignore_one_that_is_being_moved():
    folders = [[replica("a-b-0", 5), replica("a-b-1", 1)], [replica("a-b-0", 7), replica("a-b-1", 99, True)]]
    brokers = [{"broker": i, "logDirs": [{"logDir": "/d", "partitions": p}]} for i, p in enumerate(folders)]
    said = "Querying brokers\nReceived log directory information\n" + json.dumps({"version": 1, "brokers": brokers})
    assert parse_log_dirs(said).of == {TopicPartition("a-b", 0): 7, TopicPartition("a-b", 1): 1}
    assert parse_log_dirs("Querying brokers\n").why


def test_should_compute_growth_per_hour_between_the_first_and_the_last_sample():
    samples = [sample(2 * HOUR_MS, keys=500), sample(0, keys=100), sample(HOUR_MS, keys=0)]
    (grown,) = growth(samples)
    assert (grown.samples, grown.hours, grown.keys, grown.bytes_disk) == (3, 2.0, 200.0, 0.0)


@pytest.mark.parametrize(
    ("values", "per_hour"), [([], None), ([7], None), ([None, 7], None), ([None, 7, 9], 2.0), ([7, 8, None], 1.0)]
)
def test_should_compute_growth_only_when_a_number_is_known_twice(values, per_hour):
    assert [g.bytes_topic for g in growth([sample(i * HOUR_MS, 0, v) for i, v in enumerate(values)])] == (
        [per_hour] if values else []
    )


def test_should_not_compute_growth_of_two_samples_at_one_time():
    assert growth([sample(5, keys=1), sample(5, keys=9)])[0].keys is None


def test_should_list_copies_separately_and_sort_tasks_by_number():
    grown = growth([sample(0, task="0_10"), sample(0, task="0_9"), sample(0, holder=None), sample(0, holder="1")])
    assert [(g.task, g.holder) for g in grown] == [("0_0", None), ("0_0", "1"), ("0_9", "0"), ("0_10", "0")]


def test_should_append_to_the_history_and_leave_a_broken_line_out(tmp_path, caplog):
    path = history_path(tmp_path, "app")
    assert read(path) == []
    append(path, [sample(0), sample(0, task="0_1")])
    append(path, [sample(1)])
    assert read(path) == [sample(0), sample(0, task="0_1"), sample(1)]
    # A full disk lets only a part of a line through.
    with path.open("a") as file:
        file.write('{"time_ms": 5')
    append(path, [sample(2)])
    append(path, [sample(3)])
    assert read(path) == [sample(0), sample(0, task="0_1"), sample(1), sample(2), sample(3)]
    assert "app.jsonl line 4 is not a sample: delete that line" in caplog.text
    assert len(path.read_text().splitlines()) == 6


def test_should_name_the_history_file_that_cannot_be_written(tmp_path):
    (tmp_path / "store-sizes").write_text("a file")
    with pytest.raises(TidemarkError, match="TIDEMARK_VAR_DIR"):
        append(history_path(tmp_path, "app"), [sample(0)])

"""The rank of a task's folder, from the checkpoints of its stores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from rocksdict import Cache

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TaskId
from tidemark.recovery.evidence import CommittedProgress, Watermarks
from tidemark.recovery.facts import TaskFacts
from tidemark.restore.folder_rank import rank_folder
from tidemark.restore.store_builder import StoreOpener
from tidemark.stores.directory import STORES_FOLDER, UNKNOWN_RANK, FolderRank, FolderState, InstanceDirectory
from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

TASK = TaskId(0, 3)
NOW = 1_700_000_000_000
OPENER = StoreOpener(SimpleNamespace(store_write_buffer_bytes=1 << 20), Cache(1 << 20), lambda: NOW)
COMMITTED = CommittedProgress({"in": 100}, 7, StreamTimes.none())
RECORD = CommitRecord(
    kind=CommitKind.BATCH, application_id="app", topology_version="1", task=TASK, instance=0, batch=7,
    commit_time_ms=NOW, sources={"in": {3: (50, 100)}}, stream_times=StreamTimes.none(), rows=1, late_rows=0, bad_rows=0,
    filtered_rows=0, sinks={}, changelogs={}, ends_before={},
)  # fmt: skip
FACTS = TaskFacts(TASK, {}, RECORD, {}, {"counts": Watermarks(0, 90)})
BEHIND, LEVEL = FolderState.BEHIND, FolderState.LEVEL


def subtopology(*stores):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    for store in stores:
        stream.group_by_key().count(name="n", store=store).to("out")
    return topology.plan().subtopologies[0]


def subtopology_with_ages():
    """One store without a changelog whose keys leave it by age, and the store of their order."""
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.to_table(Materialized("seen", logging=False, ttl="1d"))
    return topology.plan().subtopologies[0]


PLAN = subtopology("counts")
LAYOUT = value_signature(PLAN.stores[0], value_layouts(PLAN)["counts"])
AT_7 = StoreCheckpoint("app", "1", "counts", LAYOUT, 7, NOW, {"in": 100}, NOW, 80)
AT_6 = replace(AT_7, batch=6, source_offsets={"in": 50}, changelog_offset=60)
rank = partial(rank_folder, OPENER, PLAN, FACTS, COMMITTED)


def write(folder, checkpoint, value=b"v"):
    store = RocksStore(folder / STORES_FOLDER / checkpoint.store, write_buffer_bytes=1 << 20)
    store.put_many((Writes(0, [b"k"], [value]),), checkpoint, None)
    store.close()


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (AT_7, FolderRank(LEVEL, 0, 80)),
        (AT_6, FolderRank(BEHIND, 0, 60)),
        # A standby knows neither batches nor offsets of sources.
        (replace(AT_7, batch=-1, source_offsets={}, changelog_offset=90), FolderRank(BEHIND, 0, 90)),
        # Of an earlier application of this id, or ahead of what is committed: a start says what to do.
        (replace(AT_7, batch=8), UNKNOWN_RANK),
        (replace(AT_7, source_offsets={"in": 101}), UNKNOWN_RANK),
        (replace(AT_6, changelog_offset=91), UNKNOWN_RANK),
        (replace(AT_7, value_layout=LAYOUT + "-other"), UNKNOWN_RANK),
    ],
)
def test_should_rank_a_folder_by_the_checkpoints_of_its_stores(tmp_path, checkpoint, expected):
    write(tmp_path, checkpoint)
    assert rank(tmp_path) == expected


def test_should_not_judge_a_folder_whose_store_cannot_be_read(tmp_path):
    write(tmp_path, AT_6)
    (tmp_path / STORES_FOLDER / "counts" / "CURRENT").write_text("damaged")
    assert rank(tmp_path) == UNKNOWN_RANK


def test_should_rank_a_folder_without_a_store_as_behind(tmp_path):
    assert rank(tmp_path) == FolderRank(BEHIND, 0, 0)


@pytest.mark.parametrize(("own", "peer", "kept"), [(AT_6, AT_7, b"peer"), (AT_7, AT_6, b"own"), (AT_6, AT_6, b"own")])
def test_should_continue_with_the_level_store_of_a_dead_peer_beside_an_older_own_one(tmp_path, own, peer, kept):
    """One instance became two, and then one again: its own folder is that of the time before."""
    write(tmp_path / "0" / "app" / str(TASK), own, b"own")
    write(tmp_path / "1" / "app" / str(TASK), peer, b"peer")
    instance = InstanceDirectory(tmp_path, "app", 0)
    task = instance.open_task(TASK, rank=rank)
    store = RocksStore(task.store_path("counts"), write_buffer_bytes=1 << 20)
    assert list(store.items(0)) == [(b"k", kept)]
    store.close()
    task.close()
    instance.close()


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize(
    ("checkpoint", "expected"), [(AT_7, FolderRank(LEVEL, 0, 80)), (AT_6, FolderRank(BEHIND, 0, 60))]
)
def test_should_rank_a_folder_by_its_other_stores_beside_a_custom_one(tmp_path, is_held, checkpoint, expected):
    """A standby's folder has no custom store, and nothing but its class can read that of an instance."""
    plan = subtopology("counts", Materialized("own", custom="package.module:Class"))
    write(tmp_path, checkpoint)
    if is_held:
        (tmp_path / STORES_FOLDER / "own").mkdir()
    assert rank_folder(OPENER, plan, FACTS, COMMITTED, tmp_path) == expected


@pytest.mark.parametrize("kept", [{"custom": "package.module:Class"}, {"in_memory": True}])
def test_should_not_judge_a_folder_without_a_store_that_can_be_judged(tmp_path, kept):
    (tmp_path / STORES_FOLDER / "own").mkdir(parents=True)
    assert rank_folder(OPENER, subtopology(Materialized("own", **kept)), FACTS, COMMITTED, tmp_path) == UNKNOWN_RANK


TWO = subtopology("counts", Materialized("recent", logging=False))


def unlogged(batch):
    """The checkpoint of a store without a changelog after this batch."""
    layout = value_signature(TWO.stores[1], value_layouts(TWO)["recent"])
    return replace(AT_7, store="recent", value_layout=layout, batch=batch, changelog_offset=0)


def test_should_prefer_a_folder_with_a_level_store_that_nothing_else_restores(tmp_path):
    """A crash between two stores of step 7: a dead standby has read more of the changelog, but lacks the other store."""
    write(tmp_path / "0" / "app" / str(TASK), AT_6)
    write(tmp_path / "0" / "app" / str(TASK), unlogged(7))
    write(tmp_path / "standby-0" / "app" / str(TASK), replace(AT_7, batch=-1, source_offsets={}, changelog_offset=81))
    ranks = [
        rank_folder(OPENER, TWO, FACTS, COMMITTED, tmp_path / holder / "app" / str(TASK))
        for holder in ("0", "standby-0")
    ]
    assert ranks == [FolderRank(BEHIND, 1, 60), FolderRank(BEHIND, 0, 81)]
    instance = InstanceDirectory(tmp_path, "app", 1)
    task = instance.open_task(TASK, rank=partial(rank_folder, OPENER, TWO, FACTS, COMMITTED))
    assert task.store_path("recent").exists()
    task.close()
    instance.close()


AGING = subtopology_with_ages()


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({"seen": 7, "seen-order": 7}, FolderRank(LEVEL, 2, 0)),
        ({"seen": 7}, FolderRank(BEHIND, 0, 0)),
        ({"seen-order": 7}, FolderRank(BEHIND, 0, 0)),
        ({"seen": 7, "seen-order": 6}, FolderRank(BEHIND, 0, 0)),
        ({"seen": 6, "seen-order": 7}, FolderRank(BEHIND, 0, 0)),
    ],
)
def test_should_count_a_store_without_a_changelog_only_together_with_the_order_of_its_keys(tmp_path, held, expected):
    for spec in AGING.stores:
        if spec.name in held:
            layout = value_signature(spec, value_layouts(AGING)[spec.name])
            write(tmp_path, replace(unlogged(held[spec.name]), store=spec.name, value_layout=layout))
    assert rank_folder(OPENER, AGING, FACTS, COMMITTED, tmp_path) == expected


def test_should_not_count_an_old_store_without_a_changelog(tmp_path):
    write(tmp_path, AT_6)
    write(tmp_path, unlogged(6))
    assert rank_folder(OPENER, TWO, FACTS, COMMITTED, tmp_path) == FolderRank(BEHIND, 0, 60)


OWN_STORE = "tests.support.custom_store:OwnStore"
CUSTOM = subtopology(Materialized("own", custom=OWN_STORE, logging=False))


def custom(batch):
    """The checkpoint of a custom store without a changelog after this batch."""
    layout = value_signature(CUSTOM.stores[0], value_layouts(CUSTOM)["own"])
    return replace(AT_7, store="own", value_layout=layout, batch=batch, changelog_offset=0)


@pytest.mark.parametrize(
    ("batch", "expected"), [(7, FolderRank(LEVEL, 1, 0)), (6, FolderRank(BEHIND, 0, 0)), (8, UNKNOWN_RANK)]
)
def test_should_rank_a_folder_that_has_only_a_custom_store_without_a_changelog(tmp_path, batch, expected):
    assert rank_folder(OPENER, CUSTOM, FACTS, COMMITTED, tmp_path) == FolderRank(BEHIND, 0, 0)
    write(tmp_path, custom(batch))
    assert rank_folder(OPENER, CUSTOM, FACTS, COMMITTED, tmp_path) == expected


def test_should_not_judge_a_folder_whose_custom_store_cannot_be_opened(tmp_path):
    write(tmp_path, custom(7))
    (tmp_path / STORES_FOLDER / "own" / "CURRENT").write_text("damaged")
    assert rank_folder(OPENER, CUSTOM, FACTS, COMMITTED, tmp_path) == UNKNOWN_RANK


@pytest.mark.parametrize(("own", "peer", "kept"), [(6, 7, b"peer"), (7, 6, b"own"), (6, 6, b"own")])
def test_should_continue_with_the_level_custom_store_of_a_dead_peer_beside_an_older_own_one(tmp_path, own, peer, kept):
    write(tmp_path / "0" / "app" / str(TASK), custom(own), b"own")
    write(tmp_path / "1" / "app" / str(TASK), custom(peer), b"peer")
    instance = InstanceDirectory(tmp_path, "app", 0)
    task = instance.open_task(TASK, rank=partial(rank_folder, OPENER, CUSTOM, FACTS, COMMITTED))
    store = OPENER.open(task.store_path("own"), CUSTOM.stores[0])
    assert list(store.items(0)) == [(b"k", kept)]
    store.close()
    task.close()
    instance.close()


def test_should_not_open_the_custom_store_of_a_peer_that_started_meanwhile(tmp_path, monkeypatch):
    """The peer looked dead, and has its lock before its folder is judged."""
    for holder, batch in (("0", 6), ("1", 7)):
        write(tmp_path / holder / "app" / str(TASK), custom(batch), holder.encode())
    judged, started = [], []

    def rank(folder):
        judged.append(folder.parents[1].name)
        if not started:
            started.append(InstanceDirectory(tmp_path, "app", 1))
        return rank_folder(OPENER, CUSTOM, FACTS, COMMITTED, folder)

    instance = InstanceDirectory(tmp_path, "app", 0)
    instance.open_task(TASK, rank=rank).close()
    assert judged == ["0"]
    instance.close()
    started[0].close()


@pytest.mark.parametrize("is_level", [True, False])
def test_should_count_a_custom_store_without_a_changelog_beside_another_store_if_it_is_level(tmp_path, is_level):
    plan = subtopology("counts", Materialized("own", custom=OWN_STORE, logging=False))
    write(tmp_path, AT_6)
    write(tmp_path, custom(7 if is_level else 6))
    assert rank_folder(OPENER, plan, FACTS, COMMITTED, tmp_path) == FolderRank(BEHIND, int(is_level), 60)

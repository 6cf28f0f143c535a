"""Stores without a changelog that are used only together with the order of their keys: at a start, and by a restore."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rocksdict import Cache

from tidemark.commit.record import CommitKind, CommitRecord
from tidemark.names import TaskId
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import TaskFacts
from tidemark.restore.store_builder import StoreOpener
from tidemark.restore.task_opener import TaskOpener
from tidemark.restore.unlogged_stores import carry_over
from tidemark.stores.directory import InstanceDirectory, folder_of
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.stream_times import StreamTimes
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

TASK = TaskId(0, 3)
NOW = 1_700_000_000_000
COMMITTED = CommittedProgress({"in": 100}, 7, StreamTimes.none())
RECORD = CommitRecord(
    kind=CommitKind.BATCH, application_id="app", topology_version="1", task=TASK, instance=0, batch=7,
    commit_time_ms=NOW, sources={"in": {3: (50, 100)}}, stream_times=StreamTimes.none(), rows=1, late_rows=0, bad_rows=0,
    filtered_rows=0, sinks={}, changelogs={}, ends_before={},
)  # fmt: skip
FACTS = TaskFacts(TASK, {}, RECORD, {}, {})
NAMES = ("seen", "seen-order", "plain")


@pytest.fixture
def plan():
    """Two stores without a changelog, one of which has an order."""
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    stream.to_table(Materialized("seen", logging=False, max_entries=9))
    stream.group_by_key().count(name="n", store=Materialized("plain", logging=False))
    return topology.plan()


@pytest.fixture
def opener():
    return StoreOpener(SimpleNamespace(store_write_buffer_bytes=1 << 20), Cache(1 << 20), lambda: NOW)


def write(opener, plan, base, batches):
    """Make the stores in `batches`, each with one key, up to date with its batch."""
    (subtopology,) = plan.subtopologies
    for spec in subtopology.stores:
        if (batch := batches.get(spec.name)) is None:
            continue
        layout = value_signature(spec, value_layouts(subtopology)[spec.name])
        store = opener.open(folder_of(base, TASK, spec.name), spec)
        checkpoint = StoreCheckpoint("app", "1", spec.name, layout, batch, NOW, {"in": 100}, NOW, 0)
        store.put_many([Writes(WHOLE, [b"k"], [str(batch).encode()])], checkpoint, None)
        store.close()


STATES = pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ({"seen": 7, "seen-order": 7, "plain": 7}, {"seen", "seen-order", "plain"}),
        ({"seen": 7, "plain": 7}, {"plain"}),
        ({"seen": 7, "seen-order": 6, "plain": 7}, {"plain"}),
        ({"seen": 6, "seen-order": 7, "plain": 7}, {"plain"}),
        ({"seen": 7, "seen-order": 7, "plain": 6}, {"seen", "seen-order"}),
    ],
)


@STATES
def test_should_continue_with_a_store_and_the_order_of_its_keys_or_with_neither(
    opener, plan, tmp_path, caplog, batches, kept
):
    write(opener, plan, tmp_path / "0" / "app", batches)
    with_plan = TaskOpener(
        plan=plan, settings=None, directory=None, member=None, witnesses=None, opener=opener, builder=None,
        sink_partitions={}, limits=None, writers={}, takeover=None, number=0,
    )  # fmt: skip
    instance = InstanceDirectory(tmp_path, "app", 0)
    directory = instance.open_task(TASK)
    (subtopology,) = plan.subtopologies
    stores = {spec.name: opener.open(directory.store_path(spec.name), spec) for spec in subtopology.stores}
    for group in subtopology.unlogged_groups:
        with_plan._keep_or_empty(FACTS, group, directory, stores, COMMITTED)
    assert {name for name in NAMES if list(stores[name].items(WHOLE))} == kept
    assert [f"store {name} of task" in caplog.text for name in NAMES] == [name not in kept for name in NAMES]
    for store in stores.values():
        store.close()
    directory.close()
    instance.close()


@STATES
def test_should_carry_over_a_store_and_the_order_of_its_keys_or_neither(opener, plan, tmp_path, batches, kept):
    write(opener, plan, tmp_path / "held", batches)
    lines = []
    carry_over(opener, plan, FACTS, COMMITTED, [tmp_path / "held"], tmp_path / "built", lines.append)
    assert {name for name in NAMES if folder_of(tmp_path / "built", TASK, name).exists()} == kept
    assert {line.split(" is not logged")[0] for line in lines} == {
        f"store 0_3/{name}" for name in NAMES if name not in kept
    }


def test_should_carry_over_a_store_and_the_order_of_its_keys_from_one_folder(opener, plan, tmp_path):
    """The first folder has only the store, the second only the order, the third both."""
    held = [tmp_path / name for name in ("one", "two", "three")]
    for base, batches in zip(held, ({"seen": 7}, {"seen-order": 7}, {"seen": 7, "seen-order": 7}), strict=True):
        write(opener, plan, base, batches)
    lines = []
    carry_over(opener, plan, FACTS, COMMITTED, held[:2], tmp_path / "built", lines.append)
    (line,) = [line for line in lines if line.startswith("store 0_3/seen ")]
    assert "it cannot be used without seen-order, and its folder holds nothing that was committed" in line
    assert not folder_of(tmp_path / "built", TASK, "seen").exists()
    carry_over(opener, plan, FACTS, COMMITTED, held, tmp_path / "built", lines.append)
    assert folder_of(tmp_path / "built", TASK, "seen").exists()
    assert folder_of(tmp_path / "built", TASK, "seen-order").exists()

"""Verification of a store that is larger than the allowed memory: it spills to the workspace, or names the setting."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.errors import StoreFailed
from tidemark.names import TaskId
from tidemark.restore import verify
from tidemark.restore.bounds import EvidenceBounds
from tidemark.restore.task_opener import job_to
from tidemark.settings import Settings
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.builder import Topology

KEYS, AT_ONCE = 250_000, 50_000
TASK = TaskId(0, 0)


def rows(*, is_log):
    """Some 100 MB, as a changelog or as a store gives them."""
    for start in range(0, KEYS, AT_ONCE):
        numbers = range(start, start + AT_ONCE)
        columns = {
            "segment": pa.array([0] * AT_ONCE, pa.int64()),
            "key": pa.array([b"key-%08d" % n for n in numbers], pa.binary()),
            "value": pa.array([b"%08d" % n * 50 for n in numbers], pa.binary()),
        }
        yield pa.table({"position": pa.array(numbers, pa.int64()), **columns} if is_log else columns)


@pytest.fixture
def verified(monkeypatch, tmp_path):
    """Compare a store with its changelog in so many bytes."""
    topology = Topology("app")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store="n")
    plan = topology.plan()
    monkeypatch.setattr(verify, "_changelog_rows", lambda *_: rows(is_log=True))
    monkeypatch.setattr(verify, "_store_rows", lambda _store: rows(is_log=False))
    target = StoreCheckpoint("app", "1", "n", "", 0, 0, {"in": KEYS}, 0, KEYS)
    job = job_to(plan, TASK, plan.stores[0], 0, target)

    def compare(memory_bytes):
        return verify.verify_store(
            {}, str(TASK), job, EvidenceBounds(None, None, None), None, tmp_path,
            stalled_after_s=1, memory_bytes=memory_bytes, should_continue=lambda: True,
        )  # fmt: skip

    return compare


def test_should_compare_a_store_that_is_larger_than_its_memory(verified):
    found = verified(128 << 20)
    assert (found.keys, found.different) == (KEYS, 0)


def test_should_name_the_setting_when_the_memory_is_too_small(verified):
    with pytest.raises(StoreFailed, match="raise TIDEMARK_VERIFY_MEMORY_BYTES"):
        verified(1 << 20)


def test_should_limit_memory_and_spill_into_the_workspace(tmp_path):
    limit = Settings().verify_memory_bytes
    with verify.scratch_database(tmp_path, limit) as database:
        found = database.execute("select current_setting('memory_limit'), current_setting('temp_directory')").fetchone()
    assert found == ("512.0 MiB", str(tmp_path / "spilled"))

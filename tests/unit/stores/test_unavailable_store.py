"""A store that cannot be opened now, but may be intact, is neither moved nor replaced by an empty one."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from rocksdict import Cache

from tidemark.errors import CopyUnusable, StoreUnavailable
from tidemark.names import TaskId
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.local_copies import LocalCopies, read_store_checkpoint
from tidemark.restore.store_builder import StoreOpener
from tidemark.settings import Settings
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.rocksdb_snapshot import shows_damage
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.builder import Topology

CHECKPOINT = StoreCheckpoint("app", "1", "n", "layout", 1, 1, {"in": 1}, 1, 1)
OPENER = StoreOpener(Settings.load(), Cache(1 << 20), lambda: 1)


@pytest.fixture
def spec():
    topology = Topology("app")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store="n").to("out")
    return topology.plan().stores[0]


@pytest.fixture
def folder(tmp_path, spec):
    store = OPENER.open(tmp_path / "stores" / "n", spec)
    store.put_many([Writes(WHOLE, [b"k"], [b"v"])], CHECKPOINT, None)
    store.close()
    return tmp_path / "stores" / "n"


@contextmanager
def no_more_open_files() -> Iterator[None]:
    """Allow no more files than are open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with ExitStack() as opened:
            # The limit is one of numbers, and lower ones may be free.
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    opened.enter_context(Path("/dev/null").open())
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def require_intact(folder, spec):
    assert [path.name for path in folder.parent.iterdir()] == ["n"]
    again = OPENER.open(folder, spec)
    assert (again.checkpoint, list(again.items(WHOLE))) == (CHECKPOINT, [(b"k", b"v")])
    again.close()


def test_should_leave_a_store_in_place_when_another_holder_has_it_open(folder, spec):
    held = RocksStore(folder, write_buffer_bytes=1 << 20)
    with pytest.raises(StoreUnavailable, match="end the process that has it open"):
        OPENER.open(folder, spec)
    held.close()
    require_intact(folder, spec)


def test_should_leave_a_store_in_place_when_too_many_files_are_open(folder, spec):
    with (
        no_more_open_files(),
        pytest.raises(StoreUnavailable, match=r"Too many open files.*raise the limit of open files"),
    ):
        OPENER.open(folder, spec)
    with no_more_open_files(), pytest.raises(StoreUnavailable, match="Too many open files"):
        read_store_checkpoint(folder)
    require_intact(folder, spec)


@pytest.mark.parametrize("error", [errno.EIO, errno.EUCLEAN])
def test_should_take_what_a_disk_cannot_read_for_damage(error):
    assert shows_damage(Exception(f"IO error: While pread offset 0 len 53: 000009.sst: {os.strerror(error)}"))


def test_should_use_another_copy_when_one_is_held_open(tmp_path, folder):
    held = RocksStore(folder, write_buffer_bytes=1 << 20)
    copies = LocalCopies(tmp_path, "app")
    with pytest.raises(CopyUnusable, match="has it open"):
        copies.fetch(StateCopy(SourceOfState.LOCAL, CHECKPOINT, str(folder)), TaskId(0, 0), "n", tmp_path / "fetched")
    held.close()

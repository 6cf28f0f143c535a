"""A full disk damages no state: a store that cannot be opened, or a copy that cannot be fetched, stays intact."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
from collections.abc import Iterator

import pytest
from rocksdict import Cache
from spark_jobs import stream_instance
from tests.system.crash import disk

from tidemark.errors import ExitCode, StoreFailed
from tidemark.folder_lock import LOCK_FILE, FolderLock, is_locked
from tidemark.restore.store_builder import StoreOpener
from tidemark.savepoints.manifest import SavedFile
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.builder import Topology

pytestmark = pytest.mark.skipif(not disk.may_mount(), reason="mounting a disk that can be full takes root")

CHECKPOINT = StoreCheckpoint("app", "1", "n", "layout", 1, 1, {"in": 1}, 1, 1)


@pytest.fixture
def small(tmp_path):
    """A disk of one's own."""
    with disk.mounted(tmp_path / "disk"):
        yield tmp_path / "disk"


def test_should_not_call_a_store_corrupt_when_the_disk_is_too_full_to_open_it(small):
    topology = Topology("app")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store="n").to("out")
    spec = topology.plan().stores[0]
    opener = StoreOpener(Settings.load(), Cache(1 << 20), lambda: 1)
    store = opener.open(small / "n", spec)
    store.put_many([Writes(WHOLE, [b"k"], [b"v"])], CHECKPOINT, None)
    store.close()
    disk.fill(small)
    with pytest.raises(StoreFailed, match=r"cannot open the store in .*No space left on device.*free its disk"):
        opener.open(small / "n", spec)
    disk.free(small)
    assert [path.name for path in small.iterdir()] == ["n"]
    again = opener.open(small / "n", spec)
    assert list(again.items(WHOLE)) == [(b"k", b"v")]
    again.close()


def test_should_report_a_full_disk_for_a_lock_and_leave_no_lock(small):
    with FolderLock(small / "0"):
        pass
    (small / "0" / LOCK_FILE).unlink()
    disk.fill(small)
    # What the kernel still holds back for itself.
    with pytest.raises(OSError, match="No space left"):
        (small / "rest").write_bytes(bytes(1 << 20))
    with pytest.raises(StoreFailed, match=r"/0/\.lock cannot be written \(No space left on device\): free its disk"):
        FolderLock(small / "0")
    disk.free(small)
    with FolderLock(small / "0"):
        assert is_locked(small / "0")


@pytest.fixture
def own_signals() -> Iterator[None]:
    """An instance handles signals itself; the process of the tests has its own handlers again when the test ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_should_end_an_instance_with_exit_code_retry_when_its_disk_is_full(monkeypatch, capsys, code):
    def fails(*_):
        raise OSError(code, os.strerror(code), "/state/0/.checkpoint")

    monkeypatch.setattr(stream_instance, "_run", fails)
    assert stream_instance.main(["--topology", "made"]) == ExitCode.RETRY
    assert "/state/0/.checkpoint cannot be written" in capsys.readouterr().err


def test_should_not_call_a_savepoint_unusable_when_the_disk_is_full(small, tmp_path):
    content = b"x" * 100_000
    saved = SavedFile("000001.sst", len(content), hashlib.sha256(content).hexdigest())
    repository = SavepointRepository(str(tmp_path / "savepoints"), "app")
    (tmp_path / "000001.sst").write_bytes(content)
    repository.put_file(tmp_path / "000001.sst", lambda _: None)
    disk.fill(small)
    with pytest.raises(StoreFailed, match=r"000001\.sst cannot be written .*No space left on device.*free its disk"):
        repository.fetch_file(saved, small / "000001.sst")
    disk.free(small)
    repository.fetch_file(saved, small / "000001.sst")
    assert (small / "000001.sst").read_bytes() == content

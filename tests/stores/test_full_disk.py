"""A full disk spoils no state: a store that cannot be opened, or a copy that cannot be fetched, for want of room is whole."""

from __future__ import annotations

import hashlib

import pytest
from rocksdict import Cache
from tests.crash import disk

from tidemark.errors import StoreFailed
from tidemark.restore.building import StoreOpener
from tidemark.savepoints.manifest import SavedFile
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.stores.marker import Marker
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.topology.builder import Topology

pytestmark = pytest.mark.skipif(not disk.may_mount(), reason="mounting a disk that can be full takes root")

MARKER = Marker("app", "1", "n", "layout", 1, 1, {"in": 1}, 1, 1)


@pytest.fixture
def small(tmp_path):
    """A disk of one's own."""
    with disk.mounted(tmp_path / "disk"):
        yield tmp_path / "disk"


def test_should_not_take_a_store_for_corrupt_that_has_no_room_to_be_opened(small):
    topology = Topology("app")
    topology.stream("in", schema="id STRING").group_by_key().count(name="n", store="n").to("out")
    spec = topology.plan().stores[0]
    opener = StoreOpener(Settings.load(), Cache(1 << 20), lambda: 1)
    store = opener.open(small / "n", spec)
    store.put_many([Writes(WHOLE, [b"k"], [b"v"])], MARKER, None)
    store.close()
    disk.fill(small)
    with pytest.raises(StoreFailed, match=r"cannot open the store in .*No space left on device.*free its disk"):
        opener.open(small / "n", spec)
    disk.free(small)
    assert [path.name for path in small.iterdir()] == ["n"]
    again = opener.open(small / "n", spec)
    assert list(again.items(WHOLE)) == [(b"k", b"v")]
    again.close()


def test_should_not_take_a_savepoint_for_unusable_that_there_is_no_room_for(small, tmp_path):
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

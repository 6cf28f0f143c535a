"""A RocksDB checkpoint has the contents of its time, while the store keeps changing."""

from __future__ import annotations

import pytest
from tests.support.savepoints import a_checkpoint, contents, open_store, put

from tidemark.errors import SavepointFailed


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "counts")
    yield opened
    opened.close()


def test_should_open_with_contents_and_checkpoint_of_its_time_while_the_store_changes(store, tmp_path):
    put(store, 1, {1: 4000, 2: 10})
    # The last batch is in the memtable and the write-ahead log alone.
    put(store, 2, {2: 20, 3: 5})
    stood = contents(store)
    store.create_checkpoint(tmp_path / "links" / "counts")
    put(store, 3, {1: 4000, 4: 7})
    store.put_many([], a_checkpoint(4), 3)
    copy = open_store(tmp_path / "links" / "counts")
    assert copy.checkpoint == a_checkpoint(2)
    assert contents(copy) == stood
    put(copy, 9, {3: 5, 8: 1})
    copy.close()
    assert (store.checkpoint, store.segments()) == (a_checkpoint(4), [3, 4])


def test_should_link_the_files_of_the_store_and_not_copy_them(store, tmp_path):
    put(store, 1, {1: 4000})
    store.create_checkpoint(tmp_path / "links")
    tables = list((tmp_path / "links").glob("*.sst"))
    assert tables
    assert all(path.samefile(tmp_path / "counts" / path.name) for path in tables)


def test_should_have_nothing_left_to_flush_after_a_background_flush(store):
    put(store, 1, {1: 4000, 2: 4000})
    assert not list(store.folder.glob("*.sst"))
    store.begin_flush()
    while store.is_flushing:
        pass
    assert len(list(store.folder.glob("*.sst"))) == 3, "the marker's family and two segments"


def test_should_report_that_a_checkpoint_cannot_be_made_over_an_existing_folder(store, tmp_path):
    put(store, 1, {1: 1})
    (tmp_path / "links").mkdir()
    with pytest.raises(SavepointFailed, match=r"counts cannot be checkpointed to .*links"):
        store.create_checkpoint(tmp_path / "links")

"""What the tests of `cli_stores` share."""

from __future__ import annotations

from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint

HOUR_MS = 3_600_000


CHECKPOINT = StoreCheckpoint("app", "1", "n", "1:", 1, 1, {}, 1, 1)


def store_at(folder) -> RocksStore:
    return RocksStore(folder, write_buffer_bytes=1 << 20)


def put(store, segment, keys):
    store.put_many([Writes(segment, [b"%d" % key for key in keys], [b"v" * 20] * len(keys))], CHECKPOINT, None)

"""A store on RocksDB, with one column family per segment, so that an expired segment is dropped as a whole.

The checkpoint is in the default column family and is written in the same batch as the values. The write-ahead log is on but not
synced: after power loss a store is only behind its changelog, and the changelog's tail is replayed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, repeat
from operator import le
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    MemtableFactory,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from tidemark.atomic_file import NO_ROOM
from tidemark.errors import SavepointFailed, SnapshotReleased, StoreFailed, StoreUnavailable, TaskCorrupted
from tidemark.stores.protocol import StoreFigures, Writes
from tidemark.stores.rocksdb_snapshot import APPROXIMATE_KEYS, RocksSnapshot, intact_bytes, shows_damage
from tidemark.stores.store_checkpoint import StoreCheckpoint

_READ_BUFFER_BYTES = 4 << 20
_FEW_KEYS = 1_000
"""A list that is shorter is not sorted."""
_NO_ROOM = tuple(os.strerror(code) for code in NO_ROOM)
_TOO_MANY_FILES = tuple(os.strerror(code) for code in (errno.EMFILE, errno.ENFILE))
_LOCKED = tuple(os.strerror(code) for code in (errno.EAGAIN, errno.ENOLCK))

CHECKPOINT_KEY = b"checkpoint"
_SEGMENT_PREFIX = "segment-"
_BEING_FLUSHED = "rocksdb.num-immutable-mem-table"
MEASURED_PROPERTIES = (
    "rocksdb.total-sst-files-size", "rocksdb.size-all-mem-tables", "rocksdb.estimate-table-readers-mem",
    "rocksdb.estimate-pending-compaction-bytes", "rocksdb.num-running-compactions", "rocksdb.background-errors",
)  # fmt: skip
_OF_THE_DATABASE = frozenset({"rocksdb.num-running-compactions", "rocksdb.background-errors"})
"""Properties that have the same value in each column family."""


class RocksStore:
    """Implements `Store`. Only one process at a time can have a folder open; RocksDB's own lock ensures that.

    Used by one thread, except `snapshot` and `figures`, which any thread may call.
    """

    def __init__(
        self, folder: Path, *, write_buffer_bytes: int, cache: Cache | None = None, bulk: bool = False
    ) -> None:
        """Open or create the store. Raises `TaskCorrupted` naming a folder whose contents are damaged.

        Raises `StoreFailed` if the disk is full, and `StoreUnavailable` if the store cannot be opened for another reason, such
        as another process that has it open. `bulk` is for a store that is loaded (`load_many`, `finish_load`) and closed,
        and is read only after it was opened again.
        """
        self.folder = folder
        self._options = _options(write_buffer_bytes, cache)
        if bulk:
            _for_loading(self._options)
        self._bulk = WriteOptions()
        self._bulk.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, although the stub differs
        try:
            existing = Rdict.list_cf(str(folder), self._options) if (folder / "CURRENT").exists() else []
            families = {name: self._options for name in existing if name != "default"}
            self._db = Rdict(str(folder), self._options, families)
            self._segments: dict[int, tuple[Rdict, ColumnFamily]] = {
                int(name.removeprefix(_SEGMENT_PREFIX)): self._family(name) for name in families
            }
            # Families without a written key, which no snapshot shows.
            self._unwritten: dict[int, tuple[Rdict, ColumnFamily]] = {}
            stored = self._db.get(CHECKPOINT_KEY)
        except Exception as error:
            what = f"cannot open the store in {folder}: {error}"
            if shows_damage(error):
                raise TaskCorrupted(what) from error
            # The contents may be intact, so they must be kept.
            failure = StoreFailed if _is_full(error) else StoreUnavailable
            raise failure(f"{what}; {_remedy(error)}") from error
        self._checkpoint = StoreCheckpoint.from_bytes(stored) if stored is not None else None
        self._closed = False
        # Held while the contents change, so that a snapshot has all segments and the checkpoint of the same `put_many`.
        self._changing = threading.Lock()
        self._snapshots: set[RocksSnapshot] = set()

    def _family(self, name: str) -> tuple[Rdict, ColumnFamily]:
        return self._db.get_column_family(name), self._db.get_column_family_handle(name)

    def _segment(self, segment: int) -> tuple[Rdict, ColumnFamily]:
        held = self._segments.get(segment) or self._unwritten.get(segment)
        if held is None:
            name = f"{_SEGMENT_PREFIX}{segment}"
            with self._changing:
                self._db.create_column_family(name, self._options)
            held = self._unwritten[segment] = self._family(name)
        return held

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        return self._checkpoint

    def get_many(self, segment: int, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._segments.get(segment)
        if held is None:
            return [None] * len(keys)
        order = _key_order(keys)
        values: Any = held[0].get(list(keys) if order is None else [keys[number] for number in order])
        if order is None:
            return list(values)
        found: list[bytes | None] = [None] * len(keys)
        for number, value in zip(order, values, strict=True):
            found[number] = value
        return found

    def put_many(self, writes: Sequence[Writes], checkpoint: StoreCheckpoint, first_live_segment: int | None) -> None:
        batch = WriteBatch(raw_mode=True)
        # Readers wait only while the contents change, not while the batch is made.
        with self._writing():
            self._fill(batch, writes, first_live_segment)
            batch.put(CHECKPOINT_KEY, checkpoint.to_bytes())
        with self._changing:
            with self._writing():
                self._db.write(batch)
            self._publish()
            self._checkpoint = checkpoint
            if first_live_segment is not None:
                self._drop_before(first_live_segment)

    def load_many(self, writes: Sequence[Writes]) -> None:
        """Bulk load without the write-ahead log. The data is not valid before `finish_load`."""
        batch = WriteBatch(raw_mode=True)
        with self._writing():
            self._fill(batch, writes, None)
            self._db.write(batch, self._bulk)
        self._publish()

    def _publish(self) -> None:
        self._segments |= self._unwritten
        self._unwritten.clear()

    def finish_load(self, checkpoint: StoreCheckpoint) -> None:
        """Flush what `load_many` wrote, then write the checkpoint: its presence means that the load is complete."""
        batch = WriteBatch(raw_mode=True)
        batch.put(CHECKPOINT_KEY, checkpoint.to_bytes())
        with self._writing():
            self._flush()
            self._db.write(batch)
            self._flush()
        self._checkpoint = checkpoint

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise StoreFailed(
                f"the store in {self.folder} cannot be written ({error}): {_remedy(error)}; what is committed is in Kafka"
            ) from error

    def _fill(self, batch: WriteBatch, writes: Sequence[Writes], first_live_segment: int | None) -> None:
        for write in writes:
            if first_live_segment is not None and write.segment < first_live_segment:
                continue
            family = self._segment(write.segment)[1]
            put, delete = batch.put, batch.delete
            keys, values = write.keys, write.values
            if (order := _key_order(keys)) is not None:
                keys, values = [keys[number] for number in order], [values[number] for number in order]
            if None not in values:
                deque(map(put, keys, values, repeat(family)), maxlen=0)
                continue
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    delete(key, family)
                else:
                    put(key, value, family)

    def _drop_before(self, first_live_segment: int) -> None:
        for segment in [s for s in self._segments if s < first_live_segment]:
            # The handles must be released before the family is dropped.
            del self._segments[segment]
            self._db.drop_column_family(f"{_SEGMENT_PREFIX}{segment}")

    def segments(self) -> list[int]:
        return sorted(self._segments)

    def items(self, segment: int) -> Iterator[tuple[bytes, bytes]]:
        yield from self.range(segment, b"", None)

    def range(self, segment: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        held = self._segments.get(segment)
        if held is None:
            return
        items: Any = held[0].items(from_key=start)
        for key, value in items:
            if end is not None and key >= end:
                return
            yield key, value
            start = key
        self._require_end(held[0], start)

    def _require_end(self, family: Rdict, last: bytes) -> None:
        """Raise `TaskCorrupted` if a block after `last` cannot be read: `items` takes that for the end of the data."""
        iterator = family.iter()
        iterator.seek(last)
        while iterator.valid() and iterator.key() <= last:
            iterator.next()
        with intact_bytes(f"the store in {self.folder}"):
            iterator.status()

    def snapshot(self) -> RocksSnapshot:
        """Return the contents after the last `put_many`; see `SnapshotStore`."""
        with self._changing:
            if self._closed:
                raise SnapshotReleased(f"the store in {self.folder} is closed: ask again")
            families = {segment: family for segment, (family, _) in self._segments.items()}
            snapshot = RocksSnapshot(families, self._checkpoint, self._snapshots.discard)
            self._snapshots.add(snapshot)
        return snapshot

    def figures(self) -> StoreFigures | None:
        """Return the present size; see `MeasuredStore`. Takes microseconds per column family."""
        with self._changing:
            if self._closed:
                return None
            families = self._families()
            keys = sum(family.property_int_value(APPROXIMATE_KEYS) or 0 for family in families[1:])
            properties = {
                name: sum(
                    family.property_int_value(name) or 0
                    for family in (families[:1] if name in _OF_THE_DATABASE else families)
                )
                for name in MEASURED_PROPERTIES
            }
        return StoreFigures(keys, properties)

    def _flush(self) -> None:
        self._db.flush(True)
        for family, _ in self._segments.values():
            family.flush(True)

    def begin_flush(self) -> None:
        """Start writing the contents of memory to files, and return at once. Raises `SavepointFailed`."""
        try:
            for family in self._families():
                family.flush(False)
        except Exception as error:
            raise SavepointFailed(f"the store in {self.folder} cannot be flushed: {error}") from error

    @property
    def is_flushing(self) -> bool:
        """True while RocksDB is still writing memory to files."""
        return any(family.property_int_value(_BEING_FLUSHED) for family in self._families())

    def _families(self) -> list[Rdict]:
        return [self._db, *(family for family, _ in self._segments.values())]

    def create_checkpoint(self, folder: Path) -> None:
        """Make `folder`, which must not exist, a copy of this store's current state, by hard links on the same file system.

        Flushes first, so the copy opens with the same contents and checkpoint. Blocks for tens of milliseconds, longer if much
        was only in memory (see `begin_flush`). Raises `SavepointFailed`.
        """
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as error:
            raise SavepointFailed(f"the store in {self.folder} cannot be checkpointed to {folder}: {error}") from error

    def close(self) -> None:
        """Write the contents of memory, and close the store. Raises `StoreFailed`; the store is closed even then.

        Snapshots are released first, which waits for a running step of their readers.
        """
        with self._changing:
            if self._closed:
                return
            self._closed = True
            for snapshot in list(self._snapshots):
                snapshot.release()
            # A column family keeps the database open as long as a handle to it exists.
            self._segments.clear()
            self._unwritten.clear()
            with self._writing():
                self._db.close()


def _is_full(error: Exception) -> bool:
    return any(words in str(error) for words in _NO_ROOM)


def _remedy(error: Exception) -> str:
    if _is_full(error):
        return "free its disk"
    if any(words in str(error) for words in _TOO_MANY_FILES):
        return "raise the limit of open files (`ulimit -n`)"
    if any(words in str(error) for words in _LOCKED):
        return "end the process that has it open"
    return "remove the cause, and start again"


def _key_order(keys: Sequence[bytes]) -> list[int] | None:
    """Return the numbers of the keys in their order, or None if they are in order already, or too few to matter.

    RocksDB reads and writes many keys several times faster in their order, because neighbours share its caches.
    """
    if len(keys) < _FEW_KEYS or all(map(le, keys, islice(keys, 1, None))):
        return None
    order: list[int] = pc.sort_indices(pa.array(keys, pa.large_binary())).to_pylist()
    return order


def _options(write_buffer_bytes: int, cache: Cache | None) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(write_buffer_bytes)
    # A log is kept until each family with a write in it was flushed, and that of the checkpoint is too small to be flushed.
    options.set_max_total_wal_size(2 * write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    # Else RocksDB's own log gets statistics of each family every ten minutes, and is bounded only at the next start. A limit of
    # its size would not help: each new log begins with the options of all families that there ever were.
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_open_files(256)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.1)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    if cache is not None:
        table.set_block_cache(cache)
    options.set_block_based_table_factory(table)
    return options


def _for_loading(options: Options) -> None:
    """Set options under which writes are appended and sorted in RocksDB's own threads; small files are merged later."""
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_allow_concurrent_memtable_write(False)
    options.set_disable_auto_compactions(True)


@contextmanager
def opened(folder: Path) -> Iterator[RocksStore]:
    """Open a store only to read it, outside of a task. Raises what `RocksStore` raises when it opens."""
    store = RocksStore(folder, write_buffer_bytes=_READ_BUFFER_BYTES)
    try:
        yield store
    finally:
        store.close()

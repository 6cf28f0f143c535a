"""A processor's view of a row store: rows instead of bytes, with reads ahead and delayed writes within a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemark.errors import InvalidTopology, TaskCorrupted
from tidemark.json_numbers import SIGNED, read_number
from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore, Undo
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.records import Row, StoredForm, from_dicts, single_precision
from tidemark.tasks.refused_rows import UnusableValue
from tidemark.tasks.rows import DELETED, decode_rows, encode_rows, value_schema
from tidemark.topology.plan import StoreKind, StoreSpec

_PAST_ALL_TEXT = b"\xff"


class RowStore:
    """Implements `tidemark.processors.KeyValueStore` on one `PendingStore` per batch."""

    def __init__(self, spec: StoreSpec, where: str) -> None:
        if spec.kind is not StoreKind.KEY_VALUE or not spec.columns:
            raise InvalidTopology(f"{where}: store '{spec.name}' is not a key-value store of rows; give it columns")
        self._spec = spec
        self._where = f"{where}: store '{spec.name}'"
        self._names = frozenset(column.name for column in spec.columns)
        self._nulls: Row = dict.fromkeys(column.name for column in spec.columns)
        self._stored = StoredForm(spec.columns, self._where)
        self._doubles = [column.name for column in spec.columns if column.type == "DOUBLE"]
        self._singles = [column.name for column in spec.columns if column.type == "FLOAT"]
        # Only a bounded store needs to record reads, because its least recently used keys are deleted.
        self._counts_reads = spec.max_entries is not None
        self._used: dict[bytes, None] = {}
        self._pending: PendingStore | None = None
        self._ahead: list[bytes] = []
        self._read: dict[bytes, bytes | None] = {}
        self._written: dict[bytes, Row | None] = {}
        self._own: dict[bytes, Row | None] = {}
        """Puts of the current record. Those that were already written are in `_undo`, so that they can be undone."""
        self._undo: Undo = []
        self._undo_of_batch: Undo = []

    def begin(self, pending: PendingStore, batch_keys: Sequence[str | None]) -> None:
        """Bind a batch; its keys are read at once when the first of them is needed. A null key names no row."""
        self._pending = pending
        self._read, self._written, self._used = {}, {}, {}
        self._own, self._undo, self._undo_of_batch = {}, [], []
        self._ahead = list({key.encode(): None for key in batch_keys if key is not None})

    def keep(self) -> None:
        """Keep what was put since the last `keep` or `drop`."""
        if self._own:
            self._written.update(self._own)
            self._own = {}
        if self._undo:
            self._undo_of_batch += self._undo
            self._undo = []

    def drop(self) -> None:
        """Undo what was put since the last `keep` or `drop`."""
        self._own = {}
        self._bound.take_back(self._undo)
        for _, name, _ in self._undo:
            self._read.pop(name, None)
        self._undo = []

    def write(self) -> None:
        """Write the puts of the batch."""
        self.keep()
        self._flush()

    def end(self) -> None:
        """Release the batch, which is written."""
        self._bound.note_reads(self._used)
        self._pending = None

    def abandon(self) -> None:
        """Undo all puts of the batch, and release it."""
        self._bound.take_back(self._undo_of_batch + self._undo)
        self._pending = None

    def get(self, key: str) -> Row | None:
        name = self._key(key)
        if self._counts_reads:
            self._used[name] = None
        for put in (self._own, self._written):
            if name in put:
                row = put[name]
                return None if row is None else {**self._nulls, **row}
        if name not in self._read:
            self._read_ahead(name)
        return self._decoded(self._read[name])

    def put(self, key: str, row: Mapping[str, Any] | None) -> None:
        if row is None:
            return self.delete(key)
        name = self._key(key)
        if not row.keys() <= self._names:
            from_dicts([row], self._spec.columns, self._where)  # Raises with the reason.
        self._own[name] = self._stored.of(row)
        return None

    def delete(self, key: str) -> None:
        self._own[self._key(key)] = None

    def range(self, prefix: str = "") -> Iterator[tuple[str, Row]]:
        _ = self._bound  # Raises here, and not only when the first row is taken.
        return self._range(prefix.encode())

    def _range(self, start: bytes) -> Iterator[tuple[str, Row]]:
        self._flush()
        # No UTF-8 text contains the byte 0xff.
        for key, value in self._bound.range(WHOLE, start, start + _PAST_ALL_TEXT):
            if (row := self._decoded(value)) is not None:
                yield key.decode(), row

    def get_many(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray) -> pa.Table:
        self._flush()
        names = self._keys(keys)
        values = self._bound.get_many(WHOLE, names)
        if self._counts_reads:
            self._used.update(dict.fromkeys(names))
        return decode_rows(values, self._spec.columns)

    def put_many(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray, rows: pa.Table) -> None:
        self._flush()
        schema = value_schema(self._spec.columns)
        if missing := set(schema.names) - set(rows.column_names):
            raise InvalidTopology(f"{self._where}: put_many() without column {', '.join(sorted(missing))}")
        try:
            columns = [rows.column(name).cast(kind) for name, kind in zip(schema.names, schema.types, strict=True)]
        except pa.ArrowNotImplementedError as error:
            raise InvalidTopology(f"{self._where}: put_many(): {error}; the columns are {schema}") from error
        except pa.ArrowInvalid as error:
            raise UnusableValue(f"{self._where}: put_many(): {error}; the columns are {schema}") from error
        table = pa.table(columns, schema).append_column(DELETED, pa.repeat(False, rows.num_rows))
        names = self._keys(keys)
        self._bound.put_many(WHOLE, names, encode_rows(table, self._spec.columns), self._undo)
        for name in names:
            self._read.pop(name, None)

    @property
    def _bound(self) -> PendingStore:
        if self._pending is None:
            raise InvalidTopology(
                f"{self._where}: used outside of process() and callbacks, where there is no batch to read in; use it there"
            )
        return self._pending

    def _key(self, key: str) -> bytes:
        _ = self._bound
        if not isinstance(key, str):
            raise UnusableValue(f"{self._where}: key {key!r} is {type(key).__name__}; keys are str")
        return key.encode()

    def _keys(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray) -> list[bytes]:
        if not isinstance(keys, pa.Array | pa.ChunkedArray):
            return [self._key(key) for key in keys]
        if keys.null_count:
            raise UnusableValue(
                f"{self._where}: {keys.null_count} of {len(keys)} keys are null, as those of records without a key are; "
                "filter these rows"
            )
        return bytes_list(keys)

    def _read_ahead(self, name: bytes) -> None:
        bound = self._bound
        if self._ahead:
            self._read = dict(zip(self._ahead, bound.get_many(WHOLE, self._ahead), strict=True)) | self._read
            self._ahead = []
        if name not in self._read:
            self._read[name] = bound.get_many(WHOLE, [name])[0]

    def _flush(self) -> None:
        """Write the puts, those of the current record so that they can be undone."""
        self._write(self._written, self._undo_of_batch)
        self._write(self._own, self._undo)
        self._written, self._own = {}, {}

    def _write(self, put: Mapping[bytes, Row | None], undo: Undo) -> None:
        if not put:
            return
        rows = list(put.values())
        table = from_dicts(rows, self._spec.columns, self._where)
        table = table.append_column(DELETED, pa.array([row is None for row in rows]))
        values = encode_rows(table, self._spec.columns)
        self._bound.put_many(WHOLE, list(put), values, undo)
        self._read.update(zip(put, values, strict=True))

    def _decoded(self, value: bytes | None) -> Row | None:
        if value is None:
            return None
        try:
            found = SIGNED.decode(value.decode())
            row: Row = {name: found.get(name) for name in self._nulls}
            for name in self._doubles:
                row[name] = read_number(row[name])
            for name in self._singles:
                number = read_number(row[name])
                row[name] = None if number is None else single_precision(number)
        except (ValueError, AttributeError) as error:
            raise TaskCorrupted(
                f"{self._where}: a stored row is not a JSON object of its columns", records=repr(value)
            ) from error
        return row

"""The rows of a table at any point within a batch: its updates in the batch on top of what was committed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.operators.columns import Flags, Numbers, flags, key_codes, numbers, spans
from tidemark.tasks.rows import (
    DELETED,
    KEY,
    STORED_TIME,
    TIMESTAMP,
    UNKNOWN_MS,
    Rows,
    decode_rows,
    value_schema,
)
from tidemark.topology.plan import Column

_EARLIEST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Versions:
    """One version of the table's row per lookup. `present` is true where there was a row.

    `timestamps` are epoch milliseconds, `UNKNOWN_MS` if the row is absent or was stored without a timestamp.
    """

    present: Flags
    timestamps: Numbers
    rows: pa.Table
    picks: Numbers

    def values(self) -> pa.Table:
        """Return the value columns, null where there was no row."""
        return self.rows.take(pa.array(self.picks, mask=~self.present))


class TableHistory:
    """Reads the store once, for all keys that are looked up.

    `keys` is STRING, one per lookup; null keys find nothing. `updates` are the updates of the batch, and `places` their order
    in it. The store already contains the batch, so only its committed values are used. Raises `TaskCorrupted` on a stored row
    that cannot be read.
    """

    def __init__(
        self,
        keys: pa.ChunkedArray,
        updates: Rows,
        places: Numbers,
        store: PendingStore,
        columns: Sequence[Column],
    ) -> None:
        self._places = places
        self._has_key = pc.is_valid(keys).to_numpy()
        keys = pc.fill_null(keys, "")
        self._codes, self._update_codes = key_codes(keys, updates.column(KEY))
        _, first, asked = np.unique(self._codes, return_index=True, return_inverse=True)
        held = store.get_committed_many(WHOLE, bytes_list(keys.take(pa.array(first))))
        is_held = np.array([value is not None for value in held], dtype=np.bool_)
        stored = decode_rows([value for value in held if value is not None], (*columns, STORED_TIME))
        committed = stored.select(value_schema(columns).names)
        in_batch = updates.select(committed.column_names).cast(value_schema(columns))
        self._rows = pa.concat_tables([in_batch, committed])
        self._committed = np.where(is_held, updates.num_rows + np.cumsum(is_held) - 1, -1)[asked]
        self._deleted = flags(updates, DELETED)
        stored_ms = pc.fill_null(stored.column(TIMESTAMP), UNKNOWN_MS).to_numpy()
        self._timestamps = np.concatenate([numbers(updates, TIMESTAMP), stored_ms])

    def before(self, moments: Numbers) -> Versions:
        """Return, for each lookup, the last version with a position before that of the lookup."""
        newest = spans(
            self._codes, np.full(len(moments), _EARLIEST), moments - 1, self._update_codes, self._places
        ).newest()
        updated = newest >= 0
        picks = np.where(updated, newest, self._committed).astype(np.int64)
        present = picks >= 0
        present[updated] = ~self._deleted[newest[updated]]
        present &= self._has_key
        timestamps = np.full(len(moments), UNKNOWN_MS, dtype=np.int64)
        timestamps[present] = self._timestamps[picks[present]]
        return Versions(present, timestamps, self._rows, picks)

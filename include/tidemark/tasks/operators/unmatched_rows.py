"""Rows of a stream join without a partner so far, in a key-value store, each stored as the result that it will become.

A key consists of the row's timestamp, 8 bytes; its side, 0 right and 1 left; the key's bytes; and its counter in the window
store, 4 bytes; all big-endian, so that the order is that of Kafka Streams' `TimestampedKeyAndJoinSide`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from sortedcontainers import SortedDict

from tidemark.stores.layout import bytes_list
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import WHOLE
from tidemark.tasks.operators.columns import TIME_BYTES, Numbers, big_endian, numbers
from tidemark.tasks.operators.joined_rows import COUNTER_BYTES, Kept
from tidemark.tasks.rows import KEY, TIMESTAMP
from tidemark.topology.plan import StreamStreamJoin

SIDE_BYTES = (b"\x01", b"\x00")
NEVER_MS = 2**63 - 1
"""Kafka Streams' `minTime` while nothing waits: any record causes a scan of the store."""


def waiting_keys(kept: Kept, chosen: Numbers, side: int) -> list[bytes]:
    """Return the keys under which these rows of a side wait."""
    rows = kept.rows.take(pa.array(chosen))
    return bytes_list(
        pc.binary_join_element_wise(
            big_endian(numbers(rows, TIMESTAMP)),
            pa.scalar(SIDE_BYTES[side]),
            rows.column(KEY).combine_chunks().cast(pa.binary()),
            big_endian(kept.counters[chosen], COUNTER_BYTES),
            b"",
        )
    )


def key_of(waiting: bytes) -> bytes:
    """Return the record's key from the key of a waiting row."""
    return waiting[TIME_BYTES + 1 : -COUNTER_BYTES]


def time_of(waiting: bytes) -> int:
    """Return the timestamp from the key of a waiting row."""
    return int.from_bytes(waiting[:TIME_BYTES], "big")


class Waiting:
    """The store during one batch. `write` writes it once: rows that come and go within a batch never reach the changelog.

    `look_ms` is Kafka Streams' `minTime`: the store is scanned for closed rows only when stream time has passed it by a window
    and a grace. A scan sets it to the last row that was examined, so that rows may close unnoticed until the next scan. It is
    kept from commit to commit, as Kafka Streams keeps it while it runs.
    """

    def __init__(self, node: StreamStreamJoin, store: PendingStore, look_ms: int) -> None:
        self.look_ms = look_ms
        self._store = store
        self._new: SortedDict[bytes, bytes] = SortedDict()
        self._gone: set[bytes] = set()
        self._read: list[tuple[bytes, bytes]] = []
        self._unread: Iterator[tuple[bytes, bytes]] | None = None
        self._first = 0
        # By the side's byte in a key: how long after the row a partner may come, for a right row and for a left row.
        self._open_ms = (node.before_ms + node.grace_ms, node.after_ms + node.grace_ms)

    def put(self, key: bytes, value: bytes, timestamp: int) -> None:
        """Add a row that waits from now on."""
        self._new[key] = value
        self.look_ms = min(self.look_ms, timestamp)

    def discard(self, keys: Iterable[bytes], *, stored: bool) -> None:
        """Remove rows that now have a partner: rows in the store (`stored`), or rows of this batch, which may not wait."""
        for key in keys:
            if stored:
                self._gone.add(key)
            else:
                self._new.pop(key, None)

    def due(self, side: int, stream_ms: int) -> bool:
        """Return whether a record of this side, the newest so far, causes a scan of the store."""
        # In Java the sum of NEVER_MS and another number overflows, and is smaller than any time.
        return self.look_ms == NEVER_MS or self.look_ms + self._open_ms[1 - side] < stream_ms

    def close(self, stream_ms: int) -> list[tuple[bytes, bytes]]:
        """Remove the rows whose window and grace are over, and return them in order."""
        closed: list[tuple[bytes, bytes]] = []
        is_open = [False, False]
        self.look_ms = NEVER_MS
        for key, value in heapq.merge(self._committed(), self._new.items()):
            self.look_ms = time_of(key)
            if all(is_open):
                break
            side = key[TIME_BYTES]
            if self.look_ms + self._open_ms[side] >= stream_ms:
                is_open[side] = True
            else:
                closed.append((key, value))
        for key, _ in closed:
            if self._new.pop(key, None) is None:
                self._gone.add(key)
        # The counter follows the key, so keys with a common prefix are not in their order yet.
        return sorted(closed, key=lambda entry: (entry[0][: TIME_BYTES + 1], key_of(entry[0]), entry[0]))

    def write(self) -> None:
        """Write the changes of the batch to the store."""
        gone = sorted(self._gone)
        self._store.put_many(WHOLE, gone, [None] * len(gone))
        self._store.put_many(WHOLE, list(self._new.keys()), list(self._new.values()))

    def _committed(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows of earlier batches. The store is read only as far as the iteration goes."""
        if self._unread is None:
            self._unread = self._store.range(WHOLE, b"", None)
        while self._first < len(self._read) and self._read[self._first][0] in self._gone:
            self._first += 1
        at = self._first
        while True:
            if at == len(self._read):
                entry = next(self._unread, None)
                if entry is None:
                    return
                self._read.append(entry)
            if self._read[at][0] not in self._gone:
                yield self._read[at]
            at += 1

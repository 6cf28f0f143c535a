"""Rows of a stream join that have no partner so far, in a key-value store, each as the result that it will be.

Key: the row's timestamp, 8 bytes; its side, 0 right and 1 left; the key's bytes; its counter in the window store, 4 bytes:
all big-endian, so that the order is that of Kafka Streams' `TimestampedKeyAndJoinSide`.
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
from tidemark.tasks.nodes.columns import TIME_BYTES, Numbers, big_endian, numbers
from tidemark.tasks.nodes.joined_rows import COUNTER_BYTES, Kept
from tidemark.tasks.rows import KEY, TIMESTAMP
from tidemark.topology.plan import StreamStreamJoin

SIDE_BYTES = (b"\x01", b"\x00")
NEVER_MS = 2**63 - 1
"""Kafka Streams' `minTime` while nothing waits: whatever comes, the store is looked through."""


def waiting_keys(kept: Kept, chosen: Numbers, side: int) -> list[bytes]:
    """The keys under which these rows of a side wait."""
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
    """The record's key in the key of a waiting row."""
    return waiting[TIME_BYTES + 1 : -COUNTER_BYTES]


def time_of(waiting: bytes) -> int:
    """The timestamp in the key of a waiting row."""
    return int.from_bytes(waiting[:TIME_BYTES], "big")


class Waiting:
    """The store in one batch. Written by `write`, once: what comes and goes within a batch never reaches the changelog.

    `look_ms` is Kafka Streams' `minTime`: the store is looked through for closed rows only when stream time has passed it by
    a window and a grace. Looking through sets it to the last row that was looked at, so that rows may close unseen until the
    next time; it is kept from commit to commit, as Kafka Streams keeps it while it runs.
    """

    def __init__(self, node: StreamStreamJoin, store: PendingStore, look_ms: int) -> None:
        self.look_ms = look_ms
        self._store = store
        self._new: SortedDict[bytes, bytes] = SortedDict()
        self._gone: set[bytes] = set()
        self._read: list[tuple[bytes, bytes]] = []
        self._unread: Iterator[tuple[bytes, bytes]] | None = None
        self._first = 0
        # By the side's byte in a key: how long after it a partner of the right, of the left may come.
        self._open_ms = (node.before_ms + node.grace_ms, node.after_ms + node.grace_ms)

    def put(self, key: bytes, value: bytes, timestamp: int) -> None:
        """A row that waits from now on."""
        self._new[key] = value
        self.look_ms = min(self.look_ms, timestamp)

    def discard(self, keys: Iterable[bytes], *, stored: bool) -> None:
        """Rows that have a partner now: those that the store has, or rows of this batch, which may not wait."""
        for key in keys:
            if stored:
                self._gone.add(key)
            else:
                self._new.pop(key, None)

    def due(self, side: int, stream_ms: int) -> bool:
        """Whether a record of this side, the newest so far, has the store looked through."""
        # In Java the sum of NEVER_MS and something overflows, and is smaller than any time.
        return self.look_ms == NEVER_MS or self.look_ms + self._open_ms[1 - side] < stream_ms

    def close(self, stream_ms: int) -> list[tuple[bytes, bytes]]:
        """Take out the rows whose window and grace are over, in their order."""
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
        # A counter stands behind the key, so that keys which begin like others are not in their order yet.
        return sorted(closed, key=lambda entry: (entry[0][: TIME_BYTES + 1], key_of(entry[0]), entry[0]))

    def write(self) -> None:
        """Put what the batch comes to into the store."""
        gone = sorted(self._gone)
        self._store.put_many(WHOLE, gone, [None] * len(gone))
        self._store.put_many(WHOLE, list(self._new.keys()), list(self._new.values()))

    def _committed(self) -> Iterator[tuple[bytes, bytes]]:
        """Rows of earlier batches; the store is read no further than somebody has looked."""
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

"""Keys of a session store: the key's bytes, then the session's end and its start, eight bytes big-endian each.

The end comes first, so that of one key the sessions that a record may still reach are what a scan from
`record - gap` on finds, and because the end decides a session's segment. Times are epoch milliseconds, not negative.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.stores.layout import WINDOW_START_BYTES, window_keys
from tidemark.stores.pending import PendingStore

SESSION_BYTES = 2 * WINDOW_START_BYTES
_PAST_ALL_TIMES = b"\x80"


def session_keys(keys: pa.Array, ends: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> list[bytes]:
    """Store keys of sessions, all three of the same length."""
    return window_keys(pa.array(window_keys(keys, ends), pa.binary()), starts)


def split_session_key(key: bytes) -> tuple[bytes, int, int]:
    """A session store's key as (key bytes, first record's time, last record's time)."""
    times = key[-SESSION_BYTES:]
    return (
        key[:-SESSION_BYTES],
        int.from_bytes(times[WINDOW_START_BYTES:], "big", signed=True),
        int.from_bytes(times[:WINDOW_START_BYTES], "big", signed=True),
    )


def sessions_between(
    store: PendingStore, segment: int, key: bytes, least_end_ms: int, most_start_ms: int
) -> Iterator[tuple[int, int, bytes]]:
    """(start, end, value) of the key's sessions in a segment that end at `least_end_ms` or later and start in time.

    Ascending. Ends at the first session that starts after `most_start_ms`: a key's sessions do not overlap, so all behind
    it start later still.
    """
    first = key + max(least_end_ms, 0).to_bytes(WINDOW_START_BYTES, "big")
    for found, value in store.range(segment, first, key + _PAST_ALL_TIMES):
        if len(found) != len(key) + SESSION_BYTES:
            continue  # Another key, of which this one is a prefix.
        _, start, end = split_session_key(found)
        if start > most_start_ms:
            return
        yield start, end, value

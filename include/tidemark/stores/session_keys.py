"""Keys of a session store: the key's bytes, then the session's end and its start, eight bytes big-endian each.

The end comes first because it decides a session's segment, and because a scan of one key from `record - gap` then finds exactly
the sessions that a record may still reach. Times are epoch milliseconds and not negative.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.stores.layout import WINDOW_START_BYTES, window_keys
from tidemark.stores.pending import PendingStore
from tidemark.stores.protocol import Store

SESSION_BYTES = 2 * WINDOW_START_BYTES
PAST_ALL_TIMES = b"\x01"
"""Sorts after all times of a key, which are below 2^56 (`LATEST_TIMESTAMP_MS`), so that their first byte is 0.

Of the longer keys that begin with the key, a scan up to here reads only those that continue with a NUL.
"""


def session_keys(keys: pa.Array, ends: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the store keys of sessions. All three arrays have the same length."""
    return window_keys(pa.array(window_keys(keys, ends), pa.binary()), starts)


def split_session_key(key: bytes) -> tuple[bytes, int, int]:
    """Split a session store's key into (key bytes, time of the first record, time of the last record)."""
    times = key[-SESSION_BYTES:]
    return (
        key[:-SESSION_BYTES],
        int.from_bytes(times[WINDOW_START_BYTES:], "big", signed=True),
        int.from_bytes(times[:WINDOW_START_BYTES], "big", signed=True),
    )


def sessions_between(
    store: PendingStore | Store, segment: int, key: bytes, least_end_ms: int, most_start_ms: int
) -> Iterator[tuple[int, int, bytes]]:
    """Yield (start, end, value) of a key's sessions that end at `least_end_ms` or later and start by `most_start_ms`.

    They are in ascending order and from one segment. The scan stops at the first session that starts after `most_start_ms`:
    sessions of a key do not overlap, so all later ones start even later.
    """
    first = key + max(least_end_ms, 0).to_bytes(WINDOW_START_BYTES, "big")
    for found, value in store.range(segment, first, key + PAST_ALL_TIMES):
        if len(found) != len(key) + SESSION_BYTES:
            continue  # Another key, of which this one is a prefix.
        _, start, end = split_session_key(found)
        if start > most_start_ms:
            return
        yield start, end, value

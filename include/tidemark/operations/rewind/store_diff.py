"""The records that turn one state of a changelog into another, from a merge of two sorted stores, segment by segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.stores.protocol import Store


@dataclass(frozen=True)
class LiveStore:
    """The first segment that has not expired, at the earlier time (`then`) and now. None if nothing expires."""

    then: int | None
    now: int | None


def changes(then: Store, now: Store, live: LiveStore) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the keys whose value differs, with their value in `then`; None deletes the key.

    Keys that had expired at the earlier time are left alone. Keys that have expired since are written whatever `now`
    holds: a copy that followed the changelog may have dropped them. `now` holds the changelog as it is, expired
    segments included.
    """
    for segment in sorted({*then.segments(), *now.segments()}):
        if live.then is not None and segment < live.then:
            continue
        has_expired = live.now is not None and segment < live.now
        for key, before, after in pairs(then.items(segment), now.items(segment)):
            if has_expired or before != after:
                yield key, before


def pairs(
    then: Iterator[tuple[bytes, bytes]], now: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Yield (key, value then, value now) of all keys of both, in ascending order.

    A value is None if that side lacks the key.
    """
    left, right = next(then, None), next(now, None)
    while left is not None and right is not None:
        if left[0] == right[0]:
            yield left[0], left[1], right[1]
            left, right = next(then, None), next(now, None)
        elif left[0] < right[0]:
            yield left[0], left[1], None
            left = next(then, None)
        else:
            yield right[0], None, right[1]
            right = next(now, None)
    while left is not None:
        yield left[0], left[1], None
        left = next(then, None)
    while right is not None:
        yield right[0], None, right[1]
        right = next(now, None)

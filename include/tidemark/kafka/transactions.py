"""Open transactions that hold readers of a partition back, found with Kafka's own tools.

See invariant: what clients cannot see.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.errors import OutcomeUnknown, TidemarkError
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.tools import kafka_tool, tool_rows
from tidemark.names import TopicPartition
from tidemark.settings import Settings

_LOOKS = 10
_DESCRIBED = 3
"""Partitions that the tools examine, a few seconds each. Mostly, one producer holds all of them."""
_ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
"""States in which a coordinator has written the markers of its last transaction, or believes so."""
_ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
_COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
_ENDED_MEANWHILE = "the transaction ended while it was examined"
_YOUNGER_MS = 10_000
"""A transaction that began so much later than the last record of a partition is another one than the partition's."""


def held_partitions(ends: EndOffsets, places: Sequence[TopicPartition], wait_s: float) -> dict[TopicPartition, int]:
    """Return the last stable offset of the partitions whose offset does not move for `wait_s` seconds. Blocks that long.

    A stream that commits every second always holds its sinks back, each time at another offset.
    """
    pause = threading.Event()
    held = held_now(ends, places)
    for _ in range(_LOOKS):
        if not held:
            break
        pause.wait(wait_s / _LOOKS)
        now = held_now(ends, list(held))
        held = {place: offset for place, offset in held.items() if now.get(place) == offset}
    return held


def held_now(ends: EndOffsets, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offset of the partitions that hold readers back at this moment. Blocks for two round trips."""
    # The stable offset first: an end that is read before it may be lower.
    stable = ends.stable(places)
    end = ends.of(places)
    return {place: stable[place] for place in places if stable[place] < end[place]}


def open_transactions(
    ends: EndOffsets, places: Sequence[TopicPartition], now_ms: int, settings: Settings
) -> list[OpenTransaction]:
    """Return, for each partition that is held back, the transaction that holds it. Blocks, for seconds if there are any."""
    held = held_partitions(ends, places, 2 * settings.commit_interval_ms / 1000)
    end = ends.of(list(held))
    found = []
    for number, place in enumerate(sorted(held)):
        if number >= _DESCRIBED:
            why = f"only the first {_DESCRIBED} partitions that are held back were examined"
            found.append(OpenTransaction(place, held[place], end[place], why=why))
            continue
        try:
            seen = _describe(place, held[place], end[place], now_ms, settings)
            if seen.is_hanging and ends.stable([place])[place] != seen.stable_offset:
                seen = replace(seen, open_ms=None, is_hanging=False, why=_ENDED_MEANWHILE)
            found.append(seen)
        except (TidemarkError, OSError) as error:
            found.append(OpenTransaction(place, held[place], end[place], why=f"kafka-transactions failed: {error}"))
    return found


def left_by_aborted(
    transactional_id: str, led: Collection[TopicPartition], away: Collection[TopicPartition], settings: Settings
) -> list[TopicPartition] | None:
    """Return in which partitions the last transaction of an id stays open after `init_transactions` if its marker is lost.

    `led` are partitions with a leader in which a transaction is open, `away` have no leader. None if that is not known, because
    `init_transactions` has made the coordinator forget it. `init_transactions` aborts an ongoing transaction, and writes the
    marker where there is a leader. Of a transaction that was aborted before, the coordinator no longer knows the partitions.
    Blocks, for seconds. Raises `OutcomeUnknown` if Kafka's tool fails.
    """
    try:
        states = {row["TransactionalId"]: row["TransactionState"] for row in _rows(settings, "list")}
        state = states.get(transactional_id)
        if state == "Ongoing" and away:
            (summary,) = _rows(settings, "describe", "--transactional-id", transactional_id)
            state, named = summary["TransactionState"], summary["TopicPartitions"].split(",")
            away = [p for p in away if f"{p.topic}-{p.partition}" in named] if state == "Ongoing" else away
    except (TidemarkError, OSError, ValueError, KeyError) as error:
        raise OutcomeUnknown(
            f"it is not known whether the last transaction of {transactional_id} was aborted, and it may still be open in "
            f"{', '.join(map(str, [*away, *led]))}: {error}; try again"
        ) from error
    if state == "Ongoing":
        return list(away)
    if state is None or state in _COMMITTED:
        return []
    return [*away, *led] if state in _ABORTED else None


def _describe(place: TopicPartition, stable: int, end: int, now_ms: int, settings: Settings) -> OpenTransaction:
    asked = ("describe-producers", "--topic", place.topic, "--partition", str(place.partition))
    producers = [row for row in _rows(settings, *asked) if row["CurrentTransactionStartOffset"].isdigit()]
    if not producers:
        return OpenTransaction(place, stable, end, why=_ENDED_MEANWHILE)
    first = min(producers, key=lambda row: int(row["CurrentTransactionStartOffset"]))
    producer_id = int(first["ProducerId"])
    age_ms = max(0, now_ms - int(first["LastTimestamp"]))
    names = [row["TransactionalId"] for row in _rows(settings, "list") if row["ProducerId"] == str(producer_id)]
    if not names:
        # The partition has it, no coordinator does. It is at least as old as its last record.
        return OpenTransaction(place, stable, end, producer_id, None, age_ms, is_hanging=True)
    (summary,) = _rows(settings, "describe", "--transactional-id", names[0])
    return _judged(OpenTransaction(place, stable, end, producer_id, names[0]), summary, age_ms)


def _judged(found: OpenTransaction, summary: Mapping[str, str], age_ms: int) -> OpenTransaction:
    """Compare a transaction in a partition with what its coordinator reports.

    `age_ms` is the age of its producer's last record in the partition. The coordinator has ended the transaction if it has none
    now, or one that is clearly younger.
    """
    state, duration = summary["TransactionState"], summary["TransactionDurationMs"]
    known = replace(found, timeout_ms=int(summary["TransactionTimeoutMs"]))
    if state in _ENDED or (duration.isdigit() and age_ms > int(duration) + _YOUNGER_MS):
        return replace(known, open_ms=age_ms, is_hanging=True)
    if duration.isdigit():
        return replace(known, open_ms=int(duration))
    return replace(known, why=f"its coordinator reports the state {state}")


def _rows(settings: Settings, *arguments: str) -> list[dict[str, str]]:
    code, said = kafka_tool("transactions", *arguments, settings=settings, capture=True)
    if code != 0:
        raise TidemarkError(f"`tidemark kafka transactions {' '.join(arguments)}` ended with {code}")
    return tool_rows(said)


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that holds read_committed readers of a partition back at `stable_offset`.

    `transactional_id` is None if no coordinator knows it, or if it was not looked up. `open_ms` is its age and `timeout_ms`
    its producer's limit, None if they are not known; `why` is the reason. If `is_hanging`, its coordinator has ended it, but
    the partition has no marker of its end, so no broker will end it.
    """

    partition: TopicPartition
    stable_offset: int
    end_offset: int
    producer_id: int | None = None
    transactional_id: str | None = None
    open_ms: int | None = None
    timeout_ms: int | None = None
    why: str = ""
    is_hanging: bool = False

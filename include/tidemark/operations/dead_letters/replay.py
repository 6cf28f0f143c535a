"""Sends dead letters back to where they came from, each once, however often a replay is killed and run again.

The records that are sent and the record that marks the dead letters as replayed are in one transaction, and one replay
fences another: once a replay has its transactional id, it reads everything that was ever replayed.

- A record that could not be read goes to its source again, in its own partition; if the dead letter was shortened, the
  record is read from its source.
- An output that was too large goes to its sink.
- A record that a user's code refused, or one of its outputs whose key or value could not be written, is read from its source
  and goes there again, only if that reason is asked for, as all paths of its topology process it again. It goes there once,
  however many dead letters it has: the others are only marked as replayed. A record of a repartition topic is left out if it
  was purged.

What its destination would refuse is left out, as it would abort the transaction of all others, and so is what would go to
a topic of the application that it does not read any more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.clock import wall_clock_ms
from tidemark.commit.dead_letter import REASON
from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import ApplicationHeld
from tidemark.failpoint import Probe
from tidemark.kafka.admin_errors import failed_request
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.messages import Message
from tidemark.kafka.purge import KEPT_OFFSETS
from tidemark.names import TopicPartition, replays_transactional_id
from tidemark.operations.dead_letters.destinations import Destinations, partition_of, topic_of
from tidemark.operations.dead_letters.reader import (
    REPLAYED,
    DeadLetterFilter,
    DeadLetterReader,
    ReplayMarker,
    StoredDeadLetter,
    headers_of,
)
from tidemark.operations.offline_transaction import aborting
from tidemark.settings import Settings
from tidemark.supervision.hold import describe_hold, read_hold
from tidemark.tasks.update import REFUSED, TOO_LARGE, UNWRITABLE_KEY, UNWRITABLE_VALUE
from tidemark.topology.plan import TopologyPlan

_AT_ONCE, _BYTES_AT_ONCE = 500, 16 << 20
_QUEUED_RECORDS = 100_000

REPLAYED_BEFORE = "already replayed"
SHORTENED = "shortened, and its original record is gone"
PROCESSED = {
    reason: f"its record was processed in part: pass --reason '{reason}' to send it through all paths again"
    for reason in (REFUSED, UNWRITABLE_KEY, UNWRITABLE_VALUE)
}
"""Why a dead letter stays that is not of a whole record, by its reason."""
PURGED = (
    "its original record is gone: records of a repartition topic are deleted once they are processed; send the records that "
    "led to it to the application's source again"
)
NOWHERE = "its headers do not name a destination"


@dataclass
class Replayed:
    """The number of dead letters that were sent back, and of those that were not, by the reason.

    Several dead letters of one record that is sent again all count as sent.
    """

    sent: int = 0
    left: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Destination:
    topic: str
    partition: int | None
    message: Message


# Without a destination, the record of the dead letter was sent with another one.
_Replayable = tuple[StoredDeadLetter, _Destination | None]
_Record = tuple[TopicPartition | None, int | None]


@dataclass(frozen=True)
class DeadLetterReplay:
    """Sends dead letters back. `plan` is the topology module's; `probe` is called between the steps of a transaction."""

    plan: TopologyPlan
    letters: DeadLetterReader
    settings: Settings
    probe: Probe

    def run(self, wanted: DeadLetterFilter, limit: int | None, report: Callable[[Replayed], None]) -> Replayed:
        """Replay at most `limit` dead letters. Blocks; raises what a transaction raises, and may then be run again.

        Raises `ApplicationHeld` while a command changes the application, because it may replace the topics that letters go to.
        """
        self._require_not_held()
        destinations = Destinations.of(self.plan, self.letters, wanted, self.settings)
        name = replays_transactional_id(self.letters.application_id)
        timeout_ms = self.settings.transaction_timeout_ms
        client = {**self.letters.client, **destinations.limits.producer_config()}
        producer = TransactionalProducer(client, name, timeout_ms, _QUEUED_RECORDS)
        # Only now can no earlier replay commit any more.
        producer.init(stalled_after(self.settings))
        done = Replayed()
        chosen = islice(self._chosen(wanted, destinations, done), limit)
        for part in _parts(chosen):
            self._require_not_held()
            with aborting(producer):
                self._send(producer, part)
            done.sent += len(part)
            report(done)
        return done

    def _require_not_held(self) -> None:
        var_dir, app = self.settings.var_dir, self.letters.application_id
        hold = read_hold(var_dir, app)
        if hold is not None and not hold.changes_nothing:
            raise ApplicationHeld(
                f"no dead letter is replayed while {describe_hold(var_dir, app, hold)}; replay again when that has ended"
            )

    def _chosen(self, wanted: DeadLetterFilter, destinations: Destinations, done: Replayed) -> Iterator[_Replayable]:
        earlier = self._read_again() if wanted.reason in PROCESSED else {}
        read_again: set[_Record] = set()
        for letter in self.letters.read(wanted):
            if letter.is_replayed:
                done.left[REPLAYED_BEFORE] += 1
                continue
            record: _Record = (letter.source, letter.source_offset)
            # A later one is of a source topic that was created again, or its record was processed again.
            is_sent = any(marker.is_after(letter) for marker in earlier.get(record, ()))
            if is_sent or record in read_again:
                yield letter, None
                continue
            found = destinations.absence(letter) or self._destination(letter, wanted)
            if not isinstance(found, str):
                found = destinations.refusal(found.topic, found.message) or found
            if isinstance(found, str):
                done.left[found] += 1
                continue
            if letter.reason in PROCESSED:
                read_again.add(record)
            yield letter, found

    def _read_again(self) -> dict[_Record, set[ReplayMarker]]:
        """Return the records that earlier replays have read from their source and sent there again, with their markers."""
        found: dict[_Record, set[ReplayMarker]] = {}
        for letter in self.letters.read(DeadLetterFilter()):
            if letter.marker is not None and letter.reason in PROCESSED:
                found.setdefault((letter.source, letter.source_offset), set()).add(letter.marker)
        return found

    def _destination(self, letter: StoredDeadLetter, wanted: DeadLetterFilter) -> _Destination | str:
        """Return where it goes, or why it stays."""
        source, offset = letter.source, letter.source_offset
        if letter.reason == TOO_LARGE:
            sink = topic_of(letter)
            if sink is None or not letter.is_whole:
                return NOWHERE if sink is None else SHORTENED
            return _Destination(sink, partition_of(letter), _message(letter))
        if source is None or offset is None:
            return NOWHERE
        is_read_again = letter.reason in PROCESSED
        if not is_read_again and letter.is_whole:
            return _Destination(source.topic, source.partition, _message(letter))
        if is_read_again and wanted.reason != letter.reason:
            return PROCESSED[letter.reason]
        record = self.letters.message(source, offset)
        if record is None:
            if not is_read_again:
                return SHORTENED
            return PURGED if source.topic in self.plan.repartition_topics else "its original record is gone"
        message: Message = {"key": record.key(), "value": record.value(), "timestamp": record.timestamp()[1]}
        return _Destination(source.topic, source.partition, message | _headers(headers_of(record)))

    def _send(self, producer: TransactionalProducer, part: Iterable[_Replayable]) -> None:
        summary: dict[int, list[int]] = {}
        producer.begin()
        for letter, to in part:
            if to is not None:
                producer.send_many(to.topic, [to.message], to.partition)
            summary.setdefault(letter.place.partition, []).append(letter.offset)
        self.probe("replay-letters")
        for partition, offsets in summary.items():
            receipt: Message = {"key": None, "value": json.dumps(offsets).encode(), "timestamp": wall_clock_ms()}
            producer.send_many(self.letters.topic, [receipt | _headers([(REASON, REPLAYED.encode())])], partition)
        producer.flush()
        self.probe("replay-receipts")
        producer.commit()
        self.probe("replay-commit")


def _parts(chosen: Iterable[_Replayable]) -> Iterator[list[_Replayable]]:
    """Yield as many at once as fit into a transaction."""
    part: list[_Replayable] = []
    left_bytes = _BYTES_AT_ONCE
    for letter, to in chosen:
        part.append((letter, to))
        left_bytes -= 0 if to is None else len(to.message["value"] or b"")
        if len(part) == _AT_ONCE or left_bytes <= 0:
            yield part
            part, left_bytes = [], _BYTES_AT_ONCE
    if part:
        yield part


def _message(letter: StoredDeadLetter) -> Message:
    return {"key": letter.key, "value": letter.value, "timestamp": letter.timestamp_ms} | _headers(letter.headers)


def _headers(headers: Iterable[tuple[str, bytes | None]]) -> Message:
    listed = list(headers)
    return {"headers": listed} if listed else {}


def purge(letters: DeadLetterReader, until_ms: int, partition: int | None = None) -> dict[str, int]:
    """Delete what was written to `<app>-dlq` before `until_ms`; return the number of offsets by partition of the topic.

    The last offset of a partition is kept (`KEPT_OFFSETS`). Most often it is the end of a transaction and no letter. Blocks.
    Raises `PreflightFailed` if the broker refuses, `OutcomeUnknown` if it does not answer in time.
    """
    places = [place for place in letters.partitions if partition in (None, place.partition)]
    begins, at_time, ends = (
        letters.ends.beginnings(places),
        letters.ends.at_time(places, until_ms),
        letters.ends.of(places),
    )
    before = {place: min(at_time[place], ends[place] - KEPT_OFFSETS) for place in places}
    due = {place: offset for place, offset in before.items() if offset > begins[place]}
    if not due:
        return {}
    wanted = [ClientPartition(p.topic, p.partition, at) for p, at in due.items()]
    asked = letters.admin.delete_records(wanted, request_timeout=letters.timeout_s)
    try:
        for future in asked.values():
            future.result()
    except KafkaException as error:
        what = f"failed to delete records of {letters.topic}"
        raise failed_request(what, error, "give this user the right to delete its records") from error
    return {str(place): offset - begins[place] for place, offset in due.items()}

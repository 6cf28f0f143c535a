"""Changes of a store as they are committed, read from its changelog, so that no task is involved.

A `read_committed` reader sees a record only after its transaction has been committed, also while tasks move or instances start
again. A watch begins at the last stable offset: records of a transaction that is open then come after it.

Under at_least_once nothing is in a transaction: a watch sends a record as soon as it is written, perhaps before the offsets
of its sources are committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.errors import OutcomeUnknown, TaskCorrupted
from tidemark.kafka.committed_reader import is_passing, last_record_ends, read_committed_consumer
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId, TopicPartition, changelog_topic
from tidemark.queries.answer_form import KEY, VALUE, json_entry
from tidemark.queries.catalog import QueryableStore
from tidemark.queries.errors import PositionGone, QueryInvalid, StateUnavailable
from tidemark.queries.position import ChangelogOffset, offsets_token
from tidemark.queries.server_events import CHANGE, GONE, POSITION, SLOW, ServerEvent

_MOST_RECORDS = 200
_FIRST_S, _MORE_S = 0.5, 0.01
_QUEUED_KBYTES = 1024


@dataclass(frozen=True)
class Changelogs:
    """Opens watches of an application's stores. Brokers are asked for offsets for at most `timeout_ms`."""

    application_id: str
    client_config: Mapping[str, Any]
    timeout_ms: int

    def watch(
        self, store: QueryableStore, tasks: Sequence[TaskId], key: bytes | None, after: Mapping[TaskId, ChangelogOffset]
    ) -> ChangelogWatch:
        """Return a watch of these tasks, of one key or of all (None), that continues at the offsets `after`.

        A task without an offset is watched from now on. Blocks. Raises `QueryInvalid`, `PositionGone`, `StateUnavailable`.
        """
        if not store.spec.is_logged:
            raise QueryInvalid(
                f"store {store.spec.name} has no changelog (logging=False), from which its changes would be read",
                "query it again and again, or declare it with logging=True",
            )
        if store.spec.source_topic:
            # Anybody may write to it, in the source's format, and a record may be one that the table drops.
            raise QueryInvalid(
                f"store {store.spec.name} cannot be watched: its source topic is its changelog",
                f"read topic {store.spec.source_topic}, or declare the topology without optimised=True",
            )
        topic = changelog_topic(self.application_id, store.spec.name, store.spec.generation)
        partitions = {task: TopicPartition(topic, task.partition) for task in tasks}
        ends = EndOffsets(AdminClient(dict(self.client_config)), self.timeout_ms / 1000)
        places = list(partitions.values())
        try:
            stable, newest, oldest = ends.stable(places), ends.of(places), ends.beginnings(places)
        except OutcomeUnknown as unknown:
            raise StateUnavailable(str(unknown), "ask again when the brokers run") from unknown
        starts: dict[TaskId, int] = {}
        for task, partition in partitions.items():
            at = after.get(task)
            if at is not None:
                _require_kept(store, task, at, oldest[partition], newest[partition])
            starts[task] = stable[partition] if at is None else at.offset
        looked_at = {p: (oldest[p], min(starts[task], stable[p])) for task, p in partitions.items()}
        try:
            record_ends = last_record_ends(self.client_config, looked_at, stalled_after_s=self.timeout_ms / 1000)
        except OutcomeUnknown as unknown:
            raise StateUnavailable(str(unknown), "ask again") from unknown
        promised = {task: record_ends[partition] for task, partition in partitions.items()}
        return ChangelogWatch(self.client_config, store, topic, starts, promised, key)


def _require_kept(store: QueryableStore, task: TaskId, at: ChangelogOffset, oldest: int, newest: int) -> None:
    """Raise `PositionGone` if the changelog does not have everything after the position.

    Raises `StateUnavailable` for a position of a newer generation than this process knows.
    """
    generation = store.spec.generation
    if at.generation > generation:
        raise StateUnavailable(
            f"position {task}:{at} is of generation {at.generation} of the changelog, this process knows {generation}",
            "ask again, or ask a process that was started after the change",
        )
    if at.generation != generation:
        what = f"is of generation {at.generation} of the changelog, which is now in generation {generation}"
    elif at.offset < oldest:
        what = f"is before the first offset of the changelog, {oldest}: changes in between were deleted"
    elif at.offset > newest:
        what = f"is after the end of the changelog, {newest}: the topic was created again"
    else:
        return
    raise PositionGone(
        f"position {task}:{at} {what}", "query the store again, and watch it from the position of that answer"
    )


class ChangelogWatch:
    """A `PartSource` of the changes of one store.

    The id of an event says how far all watched tasks were read, and a watch continues there. A position for `at_least` ends
    with a record, because an owner counts no transaction marker after its last one.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        store: QueryableStore,
        topic: str,
        starts: Mapping[TaskId, int],
        promised: Mapping[TaskId, int],
        key: bytes | None,
    ) -> None:
        """`promised` is by task the end of the last record before its start."""
        self._store = store
        self._key = key
        self._tasks = {task.partition: task for task in starts}
        self._next = {task: ChangelogOffset(offset, store.spec.generation) for task, offset in starts.items()}
        self._promised = {task: ChangelogOffset(offset, store.spec.generation) for task, offset in promised.items()}
        self._has_begun = self._has_ended = False
        self._consumer = read_committed_consumer(client_config, f"tidemark-watch-{topic}", _QUEUED_KBYTES)
        self._consumer.assign([ClientPartition(topic, task.partition, offset) for task, offset in starts.items()])

    @property
    def keep_alive(self) -> bytes:
        # Also a watch of a key that does not change must be able to continue where it is.
        body = {"position": offsets_token(self._promised)}
        return ServerEvent(POSITION, json.dumps(body), offsets_token(self._next)).to_bytes()

    def read(self) -> bytes | None:
        if self._has_ended:
            return None
        if not self._has_begun:
            self._has_begun = True
            return self.keep_alive
        try:
            messages = self._consumer.consume(1, timeout=_FIRST_S)
            if messages:
                messages += self._consumer.consume(_MOST_RECORDS - 1, timeout=_MORE_S)
        except KafkaException as failed:
            raise StateUnavailable(f"the changelog cannot be read: {failed}", "ask again") from failed
        records: list[Any] = []
        ends: list[Any] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.append(message)
            elif not is_passing(error):
                changes = self._changes(records)
                self._has_ended = True
                why = f"the changes after {offsets_token(self._next)} cannot be read: {error.str()}"
                return changes + self.last_part(GONE, why)
        changes = self._changes(records)
        for message in ends:
            task = self._tasks[message.partition()]
            end = ChangelogOffset(message.offset(), self._store.spec.generation)
            # Only markers are in between. What is deleted up to here is not missing.
            self._next[task] = max(self._next[task], end, key=lambda at: at.offset)
        return changes

    def _changes(self, messages: Sequence[Any]) -> bytes:
        try:
            return b"".join(event.to_bytes() for event in self._events(messages))
        except TaskCorrupted as error:
            self._has_ended = True
            return self.last_part(GONE, f"the changelog holds bytes that are not the store's: {error}")

    def _events(self, messages: Sequence[Any]) -> list[ServerEvent]:
        given = [(message, message.key() or b"", message.value()) for message in messages]
        keys = self._store.key_table([key for _, key, _ in given]).to_pylist()
        values = iter(self._store.table([(k, v) for _, k, v in given if v is not None]).column(VALUE).to_pylist())
        events = []
        for (message, _, value), row in zip(given, keys, strict=True):
            new = None if value is None else next(values)
            task = self._tasks[message.partition()]
            at = self._next[task] = self._promised[task] = ChangelogOffset(
                message.offset() + 1, self._store.spec.generation
            )
            if self._key in (None, row[KEY]):
                body = {**json_entry({**row, VALUE: new}), "position": offsets_token({task: at})}
                events.append(ServerEvent(CHANGE, json.dumps(body), offsets_token(self._next)))
        return events

    def last_part(self, kind: str, why: str) -> bytes:
        if kind == SLOW:
            # The client has not received the part that was read last. Without an id here, it continues before that part.
            return ServerEvent(kind, json.dumps({"why": why})).to_bytes()
        body = {"why": why, "position": offsets_token(self._promised)}
        return ServerEvent(kind, json.dumps(body), offsets_token(self._next)).to_bytes()

    def close(self) -> None:
        self._consumer.close()

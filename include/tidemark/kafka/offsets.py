"""Start, end and stable offsets of many partitions in one call, and a group's committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConsumerGroupDescription,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.attempts import attempt_s, refresh_metadata, retrying, retrying_with_fresh_metadata
from tidemark.kafka.clients import librdkafka_config
from tidemark.names import TopicPartition, commits_topic, first_named
from tidemark.settings import Settings

_LEADER_MOVES = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
}
_COORDINATOR_MOVES = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._TIMED_OUT,
}
_COORDINATOR_S, _TOLD_S = 5.0, 0.1

T = TypeVar("T")


def retry_until_stable(ask: Callable[[], T], group: str, timeout_s: float) -> T:
    """Return the result of `ask`, and ask again while the coordinator moves or a transaction with the offsets is open.

    Blocks. Raises `OutcomeUnknown` for any other `KafkaException`, and if this takes longer than `timeout_s`.
    """
    try:
        return retrying(_COORDINATOR_MOVES, timeout_s)(ask)
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        raise OutcomeUnknown(
            f"failed to read group {group}: {reason.str()}; try again, or look at the broker's log"
        ) from error


def committed_offsets(
    client_config: Mapping[str, Any],
    group: str,
    partitions: Sequence[TopicPartition],
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, ClientPartition]:
    """Return a group's committed offsets with their metadata; leave out partitions that have none.

    Blocks, also for a transaction that has not decided them yet. With READ_UNCOMMITTED it does not wait for that transaction,
    and returns the offsets that were committed before it. Raises `KafkaException`. Uses a consumer of its own that
    never subscribes: `committed` never returns while another thread polls the same consumer, and the admin client's
    call crashes the process while the group's coordinator is loading (confluent-kafka 2.16.1).
    """
    reader = Consumer(
        {
            **client_config,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": isolation.name.lower(),
        }
    )
    try:
        asked = [ClientPartition(p.topic, p.partition) for p in partitions]
        answered = reader.committed(asked, timeout=timeout_s) if asked else []
    except KafkaException as error:
        # If this user may not know the group's coordinator, the call times out, and only a message says why.
        told = reader.poll(_TOLD_S)
        reason = None if told is None else told.error()
        if reason is not None and reason.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(reason) from error
        raise
    finally:
        reader.close()
    found: dict[TopicPartition, ClientPartition] = {}
    for answer in answered:
        if answer.error is not None:
            raise KafkaException(answer.error)
        if answer.offset >= 0:
            found[TopicPartition(answer.topic, answer.partition)] = answer
    return found


def describe_group(settings: Settings, admin: AdminClient, group: str, **options: bool) -> ConsumerGroupDescription:
    """Ask a group's coordinator for its members; `options` are those of `describe_consumer_groups`. Blocks.

    A consumer asks first, because the admin client aborts the process (SIGABRT) while the coordinator loads the group, and also
    when the coordinator answers it after the time-out (confluent-kafka 2.16.1). Raises `KafkaException` while the coordinator
    loads the group or does not answer. If it answers with another error, the admin client is asked all the same, and its own
    error is raised.
    """
    timeout_s = settings.broker_timeout_ms / 1000
    anywhere = [TopicPartition(commits_topic(group), 0)]
    try:
        committed_offsets(librdkafka_config(settings), group, anywhere, min(timeout_s, _COORDINATOR_S))
    except KafkaException as error:
        code = error.args[0].code()
        # Negative codes are errors of the client itself, which has got no answer.
        if code in _COORDINATOR_MOVES or code < 0:
            raise
    asked = admin.describe_consumer_groups([group], request_timeout=timeout_s, **options)
    found: ConsumerGroupDescription = asked[group].result()
    return found


def is_unanswered(error: OutcomeUnknown) -> bool:
    """Return whether this error of `EndOffsets` says that no leader has answered in time, which may pass by itself."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in _LEADER_MOVES


class PartitionEnd(NamedTuple):
    """A partition's read_uncommitted end offset, and the epoch of its leader, which rises whenever the leader changes."""

    offset: int
    leader_epoch: int | None


class _NotListed(KafkaException):
    """Some of the requested partitions have no offset. `partitions` are these."""

    def __init__(self, reason: KafkaError, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(reason)
        self.partitions = partitions


class EndOffsets:
    """Read partitions' offsets with the admin client. Raises `OutcomeUnknown` if the brokers do not answer in time.

    The first call also asks for the cluster's metadata.
    """

    def __init__(self, admin: AdminClient, timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._has_asked_for_metadata = False

    def of(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's read_uncommitted end offset. Blocks for one round trip, longer if a leader has moved."""
        return self._ask(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def with_epochs(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionEnd]:
        """Return what `of` does, with the epoch of each leader. Blocks."""
        found = self._infos(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {partition: PartitionEnd(info.offset, info.leader_epoch) for partition, info in found.items()}

    def stable(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition, at which a read_committed reader must stop. Blocks."""
        return self._ask(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]

    def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that exists in each partition. Blocks."""
        return self._ask(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def at_time(self, partitions: Sequence[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record with a timestamp ≥ `at_ms`; the end if there is none. Blocks."""
        found = self._ask(partitions, OffsetSpec.for_timestamp(at_ms))
        missing = self.of([partition for partition, offset in found.items() if offset < 0])
        return {partition: missing.get(partition, offset) for partition, offset in found.items()}

    def _ask(
        self,
        partitions: Sequence[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        return {partition: info.offset for partition, info in self._infos(partitions, spec, isolation).items()}

    def _infos(
        self,
        partitions: Sequence[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ListOffsetsResultInfo]:
        if not partitions:
            return {}
        if not self._has_asked_for_metadata:
            # The first request of a new client may come before its first metadata. It then waits for a second, or until it is
            # repeated (confluent-kafka 2.16.1).
            refresh_metadata(self._admin, attempt_s(self._timeout_s))
            self._has_asked_for_metadata = True
        try:
            retry = retrying_with_fresh_metadata(_LEADER_MOVES, self._admin, self._timeout_s)
            return retry(self._ask_once, partitions, spec, isolation)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            named = first_named(error.partitions if isinstance(error, _NotListed) else partitions)
            raise OutcomeUnknown(
                f"failed to list the offsets of {named}; check that the brokers run, then try again: {reason.str()}"
            ) from error

    def _ask_once(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, ListOffsetsResultInfo]:
        asked = {ClientPartition(p.topic, p.partition): spec for p in partitions}
        futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=attempt_s(self._timeout_s))
        found: dict[TopicPartition, ListOffsetsResultInfo] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        for asked_for, future in futures.items():
            place = TopicPartition(asked_for.topic, asked_for.partition)
            try:
                info = future.result()
            except KafkaException as error:
                failed[place] = error.args[0]
                continue
            if info.offset == OFFSET_INVALID:
                # No leader has answered: the client returns neither an offset nor an error (confluent-kafka 2.16.1).
                failed[place] = KafkaError(KafkaError._TIMED_OUT)
            else:
                found[place] = info
        if failed:
            # An error that does not pass comes first, because it is not worth another attempt.
            lasting = (reason for reason in failed.values() if reason.code() not in _LEADER_MOVES)
            raise _NotListed(next(lasting, next(iter(failed.values()))), sorted(failed))
        return found

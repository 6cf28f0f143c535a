"""A member of the application's consumer group that never fetches: static, cooperative-sticky, classic protocol."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import InstanceFenced, OutcomeUnknown, PreflightFailed
from tidemark.kafka.ownership import Ownership
from tidemark.names import TopicPartition
from tidemark.settings import LONGEST_SESSION_MS, Settings

log = logging.getLogger(__name__)

_MAGIC = b"CGMDv2:"
# After an authorization failure, the next start reports which permission is missing.
_FINAL = {
    KafkaError._FATAL,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
# The coordinator would give the same answer for ever. In a full group there is a place once the session of a dead member ends.
_REFUSED = {
    KafkaError.INVALID_SESSION_TIMEOUT: "set session_timeout_ms (TIDEMARK_SESSION_TIMEOUT_MS) to a value between the brokers' "
    "group.min.session.timeout.ms and group.max.session.timeout.ms, then start this instance again",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "another program is in the consumer group that has the application's name: "
    "stop it, or give it another group, then start this instance again",
}
_POLL_INTERVAL_S = 0.05
_SHORTEST_HEARTBEAT_MS, _LONGEST_HEARTBEAT_MS = 200, 1_000
_STOPS_S = _CLIENT_CLOSES_S = 10.0


@dataclass(frozen=True)
class GroupMetadata:
    """The metadata that step 5 of a commit sends to the group coordinator. `opaque` is librdkafka's own format."""

    opaque: bytes
    generation: int
    member_id: str

    @property
    def is_checked(self) -> bool:
        """Return whether a coordinator checks it: generation -1 or an empty member id is accepted unchecked.

        See invariant: ownership at commit.
        """
        return self.generation >= 0 and bool(self.member_id)

    @classmethod
    def parse(cls, opaque: bytes, member_id: str | None) -> GroupMetadata:
        """Read the generation from librdkafka's serialized format."""
        if not opaque.startswith(_MAGIC):
            raise OutcomeUnknown("this librdkafka serializes group metadata in a format that Tidemark does not know")
        start = len(_MAGIC)
        generation = int.from_bytes(opaque[start : start + 4], "little", signed=True)
        return cls(opaque, generation, member_id or "")


def heartbeat_ms(settings: Settings) -> int:
    """Return the time between two heartbeats of a member: with the next one, it learns of a rebalance."""
    return max(_SHORTEST_HEARTBEAT_MS, min(_LONGEST_HEARTBEAT_MS, settings.session_timeout_ms // 10))


class Member:
    """Polls for rebalances in its own thread.

    Polling takes `lock`, which the commit holds through steps 1 to 7: a rebalance waits for a running commit, and a
    partition is marked as lost before the callback returns.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        topics: Sequence[str],
        lock: threading.RLock,
        on_change: Callable[[], None],
    ) -> None:
        self.ownership = Ownership()
        self._granted_to = ""
        self._lock = lock
        self._on_change = on_change
        self._topics = list(topics)
        self._client_config = dict(client_config)
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._failed = threading.Event()
        self._consumer = Consumer(
            {
                **client_config,
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "queued.min.messages": 1,
                "max.poll.interval.ms": LONGEST_SESSION_MS,
            },
        )
        self._thread = threading.Thread(target=self._poll_forever, name="group-member", daemon=True)

    def start(self) -> None:
        """Join the group; assignments arrive later and are reported with `on_change`."""
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        if self._stopping.is_set():
            return  # The client is being closed: it assigns and gives back by itself, and may refuse calls already.
        with self._lock:
            consumer.incremental_assign(partitions)
            # Paused: Spark reads the records, this member only holds the assignment.
            consumer.pause(partitions)
            member_id = consumer.memberid() or ""
            if member_id != self._granted_to:
                # The client may keep partitions over this change; others may have held them meanwhile.
                self.ownership.revoked(self.ownership.held())
                self._granted_to = member_id
                partitions = consumer.assignment()
            named = _named(partitions)
            self.ownership.assigned(named)
            log.info("rebalance: assigned %s", ", ".join(map(str, named)) or "nothing")
        self._on_change()

    def _revoked(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        with self._lock:
            named = _named(partitions)
            self.ownership.revoked(named)
            if self._stopping.is_set():
                return
            consumer.incremental_unassign(partitions)
            log.info("rebalance: revoked %s", ", ".join(map(str, named)) or "nothing")
        self._on_change()

    def _poll_forever(self) -> None:
        # librdkafka's synchronous calls never return while another thread is inside poll: so poll without waiting, and
        # only under the lock that every user of this consumer holds. librdkafka's own thread sends the heartbeats.
        while not self._stopping.wait(_POLL_INTERVAL_S):
            try:
                with self._lock:
                    message = self._consumer.poll(0)
            except Exception as error:  # noqa: BLE001 - the client also raises a bare `SystemError` out of callbacks.
                self._fail(error)
                return
            summary = None if message is None else message.error()
            if summary is not None:
                if summary.fatal() or summary.code() in _FINAL or summary.code() in _REFUSED:
                    self._fail(KafkaException(summary))
                    return
                log.warning("group member: %s", summary)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._failed.set()
        with self._lock:
            # Another member may have them now, so no query may be answered from them.
            self.ownership.revoked(self.ownership.held())
        self._on_change()

    def check(self) -> None:
        """Raise an error if the member has failed for good, or nothing polls for it any more.

        Raises `InstanceFenced`, `OutcomeUnknown`, or `PreflightFailed` if the group refuses the member as it is.
        """
        # Asked first, because the thread notes its failure before it ends.
        is_polled = self._thread.ident is None or self._thread.is_alive() or self._stopping.is_set()
        if self._failure is None:
            if is_polled:
                return
            raise OutcomeUnknown("the thread of the group member has ended; the instance starts again")
        text = str(self._failure)
        if remedy := _remedy(self._failure):
            raise PreflightFailed(f"the consumer group refuses this member: {text}; {remedy}") from self._failure
        if "FENCED" in text or "fenced" in text:
            raise InstanceFenced(
                f"the group has replaced this member by another one of the same instance: {text}"
            ) from self._failure
        raise OutcomeUnknown(f"the group member failed: {text}") from self._failure

    def await_verdict(self, timeout_s: float) -> None:
        """Give the group time to report that another member has replaced this one; raises as `check` does. Blocks.

        That copy joins after its producer is initialised, and the reply to the next heartbeat reports it.
        """
        self._failed.wait(timeout_s)
        self.check()

    def metadata(self) -> GroupMetadata:
        """Return the current generation and member id. The caller holds the lock, and checks `ownership` afterwards.

        A member that the group has removed gets another id when it joins again. The client joins in its own thread and
        may call back only later: until then, a partition that others have held meanwhile looks as if it had never been lost.
        So this marks every partition that was granted to another id as lost.
        """
        known = GroupMetadata.parse(self._consumer.consumer_group_metadata(), self._consumer.memberid())
        held = self.ownership.held()
        if held and known.member_id and known.member_id != self._granted_to:
            log.warning("group member: removed from the group and joined again; lost %s", ", ".join(map(str, held)))
            self.ownership.revoked(held)
            self._on_change()
        return known

    def commit(self, offsets: Sequence[ClientPartition]) -> None:
        """Commit offsets outside a transaction, as this member of this generation. Blocks; the caller holds the lock.

        Raises `KafkaException`, also if the group has removed this member.
        """
        answers = self._consumer.commit(offsets=list(offsets), asynchronous=False) or []
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)

    def close(self) -> None:
        """Stop polling. A static member does not leave the group: a restart within the session timeout moves nothing.

        Blocks for 20 s at most: librdkafka sometimes never ends the close of a client that is joining. The end of the process
        ends such a client.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOPS_S)
        failures: list[Exception] = []
        closing = threading.Thread(target=self._close_client, args=(failures,), name="group-member-close", daemon=True)
        closing.start()
        closing.join(_CLIENT_CLOSES_S)
        if closing.is_alive():
            log.warning(
                "group member: its client did not close within %.0f s; the end of the process ends it", _CLIENT_CLOSES_S
            )
        if failures:
            raise failures[0]

    def _close_client(self, failures: list[Exception]) -> None:
        try:
            self._consumer.close()
        except (KafkaException, RuntimeError) as error:
            failures.append(error)


def _remedy(failure: Exception) -> str | None:
    """Return what to do so that the group takes the member; None if the failure is not the group's refusal."""
    error = failure.args[0] if isinstance(failure, KafkaException) else None
    return _REFUSED.get(error.code()) if isinstance(error, KafkaError) else None


def _named(partitions: Sequence[ClientPartition]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.partition) for p in partitions]

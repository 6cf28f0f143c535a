"""Ends aborted transactions that a partition still takes for open, before the next commit can make their records visible.

A coordinator writes no marker to a partition that has no leader at that moment (KAFKA-20734, in Kafka 4.3.1). There the
transaction stays open, and the next one of the same producer ends it too. See invariant: lost markers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from confluent_kafka.admin import AdminClient

from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import BatchAborted, BrokersAway, OutcomeUnknown, PreflightFailed
from tidemark.kafka.cluster import describe_replicas
from tidemark.kafka.offsets import EndOffsets, PartitionEnd
from tidemark.kafka.records_at import leader_epochs_at
from tidemark.kafka.transactions import held_now, held_partitions, left_by_aborted
from tidemark.names import TopicPartition
from tidemark.processes import wait_until
from tidemark.settings import Settings

log = logging.getLogger(__name__)

_ENDS_S = 5.0
"""If readers of a partition still wait so many seconds after the extra abort, a warning is logged."""
_HELD_S = 1.0
"""A transaction that holds readers back for less time is not examined: its own producer is about to end it."""
_DOCS = 'docs/commit-protocol.md, "A partition that loses its last broker within a transaction"'


class LostMarkers:
    """Looks after one transactional producer and the partitions that it may write to.

    A marker can be lost only where the leader changes, and each change raises the leader's epoch. So a partition is doubtful if
    its leader's epoch is not the one in which an aborted transaction began.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        admin: AdminClient,
        ends: EndOffsets,
        settings: Settings,
        places: Sequence[TopicPartition],
    ) -> None:
        self._producer, self._admin, self._ends = producer, admin, ends
        self._settings, self._places = settings, places
        self._began: dict[TopicPartition, int | None] = {}
        self._doubtful: dict[TopicPartition, int | None] = {}

    def init(self, timeout_s: float, *, ends_them: bool = True) -> None:
        """Initialise the producer, and end what an aborted transaction of the process before has left open. Blocks.

        `init_transactions` makes the coordinator forget how that transaction ended, so nothing is initialised before
        everything can be ended. Raises `BrokersAway` while such a partition has no leader, `PreflightFailed` if `ends_them` is
        false and there is such a partition, and what `TransactionalProducer.init` and `EndOffsets` raise.
        """
        away, suspects = self._left_open()
        left = left_by_aborted(self._producer.name, suspects, away, self._settings) if away or suspects else ()
        if left and not ends_them:
            raise PreflightFailed(
                f"an aborted transaction of {self._producer.name} is still open in {_named(left)}, which has lost its marker: "
                "start that instance, which ends it, and stop it. If it cannot start, use `tidemark kafka transactions abort "
                f"--topic … --partition … --start-offset …`. Then try again; see {_DOCS}"
            )
        if waiting := [place for place in away if place in (left or ())]:
            raise BrokersAway(f"no broker leads {_named(waiting)}, in which an aborted transaction must be ended first")
        self._producer.init(timeout_s)
        if left:
            self._began = {place: suspects[place] for place in left}
            try:
                self._abort_what_is_open(left)
            except BatchAborted as error:
                log.warning("the next commit has to end it first: %s", error)
                self._doubtful = dict.fromkeys(left)
        elif left is None and (held := held_now(self._ends, list(suspects))):
            log.warning(
                "a transaction is open in %s. If it is one of %s that was aborted, the next commit shows its records; see %s",
                _named(held), self._producer.name, _DOCS,
            )  # fmt: skip

    def end_in(self, found: Mapping[TopicPartition, PartitionEnd]) -> bool:
        """End what aborted transactions have left open in the partitions of the next one; return whether there was any.

        `found` are their ends, which must have been read since the last transaction ended. If it returns True, read them and
        call it again, because this marker may have been lost, too. Blocks if it ends something. Raises what the producer does,
        and `BatchAborted` if a leader does not answer.
        """
        if self._producer.has_aborted:
            self._doubtful = {**self._began, **self._doubtful}
        moved = [p for p, end in found.items() if self._doubtful.get(p, end.leader_epoch) != end.leader_epoch]
        has_ended = self._abort_what_is_open(moved)
        for place in found:
            self._doubtful.pop(place, None)
        self._began = {place: end.leader_epoch for place, end in found.items()}
        return has_ended

    def _left_open(self) -> tuple[list[TopicPartition], dict[TopicPartition, int | None]]:
        """Return the partitions that may have lost a marker: those without a leader, and others with their leader's epoch.

        The others hold readers back at a record that another leader has written, and for some time.
        """
        try:
            away, held = self._away_and_held()
        except OutcomeUnknown:
            # A broker that has just gone still looks like a leader.
            away, held = self._away_and_held()
        epochs = {place: end.leader_epoch for place, end in self._ends.with_epochs(list(held)).items()}
        written = leader_epochs_at(self._settings, held)
        suspects = [place for place in held if written.get(place) != epochs[place]]
        return away, {place: epochs[place] for place in held_partitions(self._ends, suspects, _HELD_S)}

    def _away_and_held(self) -> tuple[list[TopicPartition], dict[TopicPartition, int]]:
        _, topics = describe_replicas(self._admin, self._settings)
        found = {place: topics.get(place.topic, {}).get(place.partition) for place in self._places}
        away = [place for place, facts in found.items() if facts is not None and facts.leader is None]
        return away, held_now(self._ends, [place for place in self._places if place not in away])

    def _abort_what_is_open(self, places: Collection[TopicPartition]) -> bool:
        """Abort one more transaction, with a record in each partition that is held back; return whether there was one."""
        try:
            held = held_now(self._ends, list(places))
        except OutcomeUnknown as unanswered:
            raise BatchAborted(f"nothing was sent: {unanswered}") from unanswered
        if not held:
            return False
        log.warning("%s may have lost the marker of an aborted transaction; aborting one there to end it", _named(held))
        self._producer.begin()
        for place in held:
            # A compacted topic refuses records without a key.
            self._producer.send_many(place.topic, [{"key": b"aborted", "value": b""}], place.partition)
        self._producer.flush()
        self._producer.abort()

        def have_moved() -> bool:
            return all(at > held[place] for place, at in self._ends.stable(list(held)).items())

        with suppress(OutcomeUnknown):  # A leader has gone again, which the next look at the ends reports.
            if not wait_until(have_moved, _ENDS_S):
                log.warning("another producer's transaction is open in %s; see `tidemark check lag`", _named(held))
        return True


def _named(places: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, places))

"""Faults of an application's topics, and what can be known of the topics without the application."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic
from tests.support.purging import purge
from tests.support.truth.compare import WINDOW_START
from tests.support.truth.topics import Place, Row, end_offsets, partitions, read_all
from tests.system.crash.bench import Bench

from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import user_topics
from tidemark.names import TopicPartition, changelog_topic, repartition_topic
from tidemark.processes import wait_until
from tidemark.settings import Settings

POISONED_STORE = {"patients": "pulse-counts", "nodes": "counts"}
"""Stores of windows: what is written for the oldest is not written again by a batch."""


class Topics:
    """The topics of one application."""

    def __init__(self, bench: Bench, settings: Settings) -> None:
        self._bench = bench
        self._settings = settings

    def names(self) -> list[str]:
        """All that there are, the user's among them."""
        listed = self._bench.admin.list_topics(timeout=15).topics
        return sorted(t for t in listed if t.startswith(f"{self._bench.application_id}-") or t in self.users)

    @property
    def users(self) -> list[str]:
        """Sources and sinks."""
        return user_topics(self._bench.plan)

    @property
    def sources(self) -> list[str]:
        """The user's source topics that the benches feed."""
        return [topic for topic in self.users if topic in {"pulse-events", "nodes-events", "nodes-others"}]

    def sources_of_reset(self) -> list[str]:
        """All topics of the user's that the application reads."""
        plan = self._bench.plan
        internal = set(plan.repartition_topics)
        return sorted({t for s in plan.subtopologies for t in s.source_topics} - internal)

    def lows(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset that each partition holds."""
        ends = EndOffsets(self._bench.admin, 15)
        found = ends.beginnings([TopicPartition(*place) for place in places])
        return {(place.topic, place.partition): low for place, low in found.items()}

    def generations(self) -> dict[str, int]:
        """The newest changelog of each store."""
        names = self.names()
        found: dict[str, int] = {}
        for store in self._bench.plan.stores:
            pattern = re.escape(changelog_topic(self._bench.application_id, store.name)) + r"(?:-(\d+))?"
            numbers = [int(match[1] or 0) for topic in names if (match := re.fullmatch(pattern, topic))]
            found[store.name] = max(numbers, default=0)
        return found

    def changelog(self, store: str) -> str:
        """The one that is in use."""
        return changelog_topic(self._bench.application_id, store, self.generations()[store])

    def changelogs(self) -> dict[str, str]:
        """Those in use that hold records, by store."""
        logged = {s.name: self.changelog(s.name) for s in self._bench.plan.stores if s.is_logged and not s.source_topic}
        ends = self.ends(logged.values())
        return {store: topic for store, topic in logged.items() if any(ends[p] for p in ends if p[0] == topic)}

    def ends(self, topics: Iterable[str]) -> dict[Place, int]:
        """End offsets of topics that exist, read_uncommitted."""
        there = set(self.names())
        bootstrap = self._bench.bootstrap
        return end_offsets(bootstrap, partitions(bootstrap, [t for t in topics if t in there]), "read_uncommitted")

    def delete(self, topics: Iterable[str]) -> None:
        """And wait until the broker knows."""
        gone = [topic for topic in topics if topic in self.names()]
        if not gone:
            return
        for deleted in self._bench.admin.delete_topics(gone).values():
            deleted.result(60)
        # What is made again begins at its first record.
        since = self._bench.past.since
        self._bench.past.since = {place: offset for place, offset in since.items() if place[0] not in gone}
        if not wait_until(lambda: not {*gone} & {*self.names()}, 60):
            raise RuntimeError(f"{gone} are not gone")

    def make_again(self, topic: str) -> None:
        """Delete it and make one of its name, with its policy."""
        policy = topic_configs(self._bench.admin, [topic], self._settings)[topic]["cleanup.policy"]
        self.delete([topic])

        def made() -> bool:
            wanted = NewTopic(topic, self._bench.partitions, 1, config={"cleanup.policy": policy})
            try:
                self._bench.admin.create_topics([wanted])[topic].result(60)
            except KafkaException:  # The old one may still be on its way out.
                return False
            return True

        if not (wait_until(made, 60, 0.2) and wait_until(lambda: topic in self.names(), 60)):
            raise RuntimeError(f"{topic} could not be made again")

    def purge(self, before: dict[Place, int]) -> None:
        """Delete what lies before these offsets."""
        purge(self._bench.admin, self._settings, {TopicPartition(*place): at for place, at in before.items()})

    def keep_sources(self) -> None:
        """Read the sources, so that the recomputation knows what will be deleted."""
        past = self._bench.past
        past.kept |= read_all(self._bench.bootstrap, self.sources, past=past)

    def repartition(self) -> str:
        """The one between the sub-topologies of the nodes."""
        return repartition_topic(self._bench.application_id, "by-kind")

    def poison(self, how: str, store: str, chance: random.Random) -> str:
        """A stranger's record in the changelog of a store of windows, for one of the oldest; says what it is."""
        topic = self.changelog(store)
        live: dict[bytes, Row] = {}
        for rows in read_all(self._bench.bootstrap, [topic]).values():
            live |= {row.key: row for row in rows if row.key is not None}
        held = sorted(
            (row for row in live.values() if row.value is not None), key=lambda row: row.key[-WINDOW_START.size :]
        )
        victim = chance.choice(held[:10])
        others = [row.value for row in held if row.value != victim.value]
        key, value = {
            "existing key": (victim.key, chance.choice(others)),
            "new key": (b"stranger" + victim.key[-WINDOW_START.size :], victim.value),
            "tombstone": (victim.key, None),
        }[how]
        producer = Producer({"bootstrap.servers": self._bench.bootstrap})
        producer.produce(topic, value, key, partition=victim.partition)
        if producer.flush(60):
            raise RuntimeError("the stranger's record was not acknowledged")
        return f"{how} {key!r} in {topic}[{victim.partition}]"

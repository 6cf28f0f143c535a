"""Live figures of all applications from Kafka: lag, rates, late records and dead letters. Blocks; one thread uses it.

Reads the commit records with one consumer that stays open, and end offsets with one request for all partitions, so that
looking often costs little. Never joins a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tidemark.commit.history import last_commit_records
from tidemark.commit.record import CommitRecord
from tidemark.errors import OutcomeUnknown, TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.committed_reader import messages_of_ranges, read_committed_consumer
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import task_ids
from tidemark.names import TopicPartition, commits_topic, dlq_topic, topology_topic
from tidemark.operations.dead_letters.reader import REPLAYED, letter_of
from tidemark.overview.commit_window import WINDOW_MS, CommitFigures, CommitWindow
from tidemark.overview.dead_letter_samples import DeadLetterSample, sample_of, samples_of
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

ANSWER_S = 3.0
"""How long brokers may take for one answer before the page says that they are away."""
_DEAD_LETTERS_READ, _LEAST_OF_PARTITION = 200, 16
"""The number of the newest dead letters that are counted, and the smallest number of offsets that is read of a partition.

Some of the offsets hold transaction markers, so more are read than records are wanted.
"""
_RECORDS_AT_ONCE = 5000
_POLL_S = 0.2


@dataclass(frozen=True)
class LiveView:
    """The live figures of one application. `plan` has the names in use, such as those of repartition topics after a rescale.

    `lag` are offsets by source topic; a topic is missing if it does not exist. `dead_letters` are the offsets in its topic
    (transaction markers count), `reasons` counts the newest 200 by reason, and `samples` are the newest of each reason.
    `fault`: why nothing is known of this application. `letters_fault`: why its dead letters are not known, and only these.
    """

    plan: TopologyPlan
    figures: CommitFigures | None = None
    lag: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    samples: tuple[DeadLetterSample, ...] = ()
    fault: str | None = None
    letters_fault: str | None = None

    @property
    def total_lag(self) -> int | None:
        """The lag of all sources; None if it is not known."""
        return sum(self.lag.values()) if self.figures is not None and self.lag else None


@dataclass(frozen=True)
class _Traces:
    """Two facts in Kafka about one application. When one of them changes, the application's plan is read again.

    `described_end` is the end offset of its topology topic, None if there is no such topic. `commits` is the number of
    partitions of its commits topic, 0 if there is none.
    """

    described_end: int | None
    commits: int


@dataclass
class _Followed:
    """The knowledge about one application that stays between two looks. `traces` are from before `plan` was read."""

    plan: TopologyPlan
    traces: _Traces
    window: CommitWindow = field(default_factory=CommitWindow)
    dead_letter_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    dead_letters: int = 0
    letters: tuple[DeadLetterSample, ...] = ()


class LiveReader:
    """Looks at Kafka for several applications. Not safe to use from several threads."""

    def __init__(self, plans: Mapping[str, TopologyPlan], settings: Settings) -> None:
        """`plans` are those of the topology modules, by application id. Raises `InvalidSettings`."""
        self._plans = plans
        # The page waits for no broker longer than this, whatever commands do.
        self._settings = settings.model_copy(update={"broker_timeout_ms": int(ANSWER_S * 1000)})
        self._client = librdkafka_config(self._settings)
        self._admin = AdminClient(self._client)
        self._ends = EndOffsets(self._admin, ANSWER_S)
        self._consumer: Consumer | None = None
        self._assigned: dict[TopicPartition, str] = {}
        self._followed: dict[str, _Followed] = {}
        self._traces: dict[str, _Traces] = {}

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def look(self, now_ms: int) -> dict[str, LiveView]:
        """Return the figures of every application. Raises `OutcomeUnknown` if no broker answers within three seconds.

        A fault of one application, such as a partition without a leader, is only in its own view.
        """
        partitions = self._partitions()
        faults: dict[str, str] = {}
        unknown = self._plans.keys() - self._traces.keys()
        described = {app: _places([topology_topic(app)], partitions) for app in self._plans}
        self._find_traces(partitions, self._ends_of({app: described[app] for app in unknown}, faults))
        for app in [app for app in self._plans if app not in faults]:
            try:
                self._follow(app, self._plans[app], partitions, now_ms)
            except TidemarkError as error:
                faults[app] = str(error)
        self._take_commits()
        # Also the descriptions of those with a fault: a new one may end it.
        wanted = {
            app: described[app]
            if app in faults
            else [*described[app], *_looked_at(self._followed[app].plan, partitions)]
            for app in self._plans
        }
        ends = self._ends_of(wanted, faults)
        self._find_traces(partitions, ends)
        views: dict[str, LiveView] = {}
        for app in [app for app in self._plans if app not in faults]:
            try:
                views[app] = self._view(app, self._followed[app], partitions, ends[app], now_ms)
            except TidemarkError as error:
                faults[app] = str(error)
        return views | {app: LiveView(self._plans[app], fault=fault) for app, fault in faults.items()}

    def _view(
        self,
        app: str,
        known: _Followed,
        partitions: Mapping[str, int],
        ends: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> LiveView:
        figures = known.window.figures(now_ms)
        lag: Counter[str] = Counter()
        sources = _places(_sources(known.plan), partitions)
        # Without a commit, everything that is there waits.
        low = self._ends.beginnings([place for place in sources if place not in figures.committed])
        for place in sources:
            lag[place.topic] += max(0, ends[place] - figures.committed.get(place, low.get(place, 0)))
        try:
            self._count_dead_letters(app, known, ends)
        except TidemarkError as error:
            return LiveView(known.plan, figures, lag, letters_fault=str(error))
        reasons = dict(Counter(letter.reason for letter in known.letters).most_common())
        return LiveView(known.plan, figures, lag, known.dead_letters, reasons, samples_of(known.letters))

    def _ends_of(
        self, wanted: Mapping[str, Sequence[TopicPartition]], faults: dict[str, str]
    ) -> dict[str, Mapping[TopicPartition, int]]:
        """Return the end offsets of each application's partitions, with one request if all are known.

        If one is not, each application is asked for by itself, and only those that are not answered are left out and get a
        fault. Raises `OutcomeUnknown` if no broker answers any more.
        """
        try:
            ends = self._ends.of([place for places in wanted.values() for place in places])
        except OutcomeUnknown:
            self._partitions()
        else:
            return {app: {place: ends[place] for place in places} for app, places in wanted.items()}
        found: dict[str, Mapping[TopicPartition, int]] = {}
        for app, places in wanted.items():
            try:
                found[app] = self._ends.of(places)
            except OutcomeUnknown as error:
                faults[app] = str(error)
        return found

    def _partitions(self) -> dict[str, int]:
        """Return the number of partitions of every topic."""
        try:
            found = self._admin.list_topics(timeout=ANSWER_S).topics
        except KafkaException as error:
            raise OutcomeUnknown(
                f"no broker answers at {self._settings.bootstrap_servers} ({error.args[0].str()}): start it, or see "
                "`tidemark status`"
            ) from error
        return {topic: len(known.partitions) for topic, known in found.items()}

    def _find_traces(self, partitions: Mapping[str, int], ends: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        for app, known in ends.items():
            described_end = known.get(TopicPartition(topology_topic(app), 0))
            self._traces[app] = _Traces(described_end, partitions.get(commits_topic(app), 0))

    def _follow(self, app: str, plan: TopologyPlan, partitions: Mapping[str, int], now_ms: int) -> None:
        """Begin or continue to follow the commits of an application."""
        known = self._followed.get(app)
        traces = self._traces[app]
        if known is None or known.traces != traces:
            named = named_plan(plan, self._settings, self._admin)
            if known is None or named != known.plan:
                self._forget(app)
                known = self._followed[app] = _Followed(named, traces)
            known.traces = traces
        fresh = [place for place in _places([commits_topic(app)], partitions) if place not in self._assigned]
        if fresh:
            tasks = task_ids(known.plan, partitions)
            last = last_commit_records(self._client, self._ends, app, tasks, stalled_after_s=ANSWER_S)
            for record in last.values():
                known.window.remember(record)
            self._assign(app, self._ends.at_time(fresh, now_ms - WINDOW_MS))

    def _assign(self, app: str, start: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, too, from these offsets on."""
        if self._consumer is None:
            # An idle partition is asked for once a second.
            config = {**self._client, "fetch.wait.max.ms": 1000}
            self._consumer = read_committed_consumer(config, "tidemark-overview")
        self._consumer.incremental_assign([ClientPartition(p.topic, p.partition, at) for p, at in start.items()])
        self._assigned.update(dict.fromkeys(start, app))

    def _forget(self, app: str) -> None:
        """Stop following an application whose topology was changed, so that its last commits are read again."""
        mine = [place for place, owner in self._assigned.items() if owner == app]
        if self._consumer is not None and mine:
            self._consumer.incremental_unassign([ClientPartition(p.topic, p.partition) for p in mine])
        for place in mine:
            del self._assigned[place]

    def _take_commits(self) -> None:
        """Count the commits since the last look."""
        while self._consumer is not None:
            messages = self._consumer.consume(_RECORDS_AT_ONCE, timeout=_POLL_S)
            for message in messages:
                value = message.value()
                if message.error() is None and isinstance(value, bytes):
                    app = self._assigned[TopicPartition(str(message.topic()), int(message.partition() or 0))]
                    with suppress(TidemarkError):  # written by another version
                        self._followed[app].window.add(CommitRecord.from_bytes(value))
            if len(messages) < _RECORDS_AT_ONCE:
                return

    def _count_dead_letters(self, app: str, known: _Followed, ends: Mapping[TopicPartition, int]) -> None:
        """Read the newest dead letters of the partitions that have new ones."""
        mine = {place: end for place, end in ends.items() if place.topic == dlq_topic(app)}
        if mine == known.dead_letter_ends:
            return
        low = self._ends.beginnings(list(mine))
        moved = {place for place, end in mine.items() if known.dead_letter_ends.get(place) != end}
        filled = [place for place in moved if low[place] < mine[place]]
        share = max(_LEAST_OF_PARTITION, _DEAD_LETTERS_READ // max(1, len(filled)))
        ranges = {place: (max(low[place], mine[place] - share), mine[place]) for place in filled}
        kept = {place.partition for place in mine.keys() - moved}
        letters = [letter for letter in known.letters if letter.partition in kept]
        for _, messages in messages_of_ranges(self._client, ranges, stalled_after_s=ANSWER_S):
            letters += [sample_of(letter) for letter in map(letter_of, messages) if letter.reason != REPLAYED]
        newest = sorted(letters, key=lambda letter: (letter.written_ms, letter.offset), reverse=True)
        known.letters = tuple(newest[:_DEAD_LETTERS_READ])
        known.dead_letters = sum(end - low[place] for place, end in mine.items())
        known.dead_letter_ends = mine


def _sources(plan: TopologyPlan) -> list[str]:
    return sorted({topic for s in plan.subtopologies for topic in s.source_topics})


def _places(topics: Iterable[str], partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in range(partitions.get(topic, 0))]


def _looked_at(plan: TopologyPlan, partitions: Mapping[str, int]) -> list[TopicPartition]:
    return _places([*_sources(plan), dlq_topic(plan.application_id)], partitions)

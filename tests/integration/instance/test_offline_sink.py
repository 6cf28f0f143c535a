"""A sink partition whose only broker is down, on three real brokers: its stream waits, others continue, nothing is lost.

Batches are made in plain Python; instances, transactions and brokers are real.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.coordinators import TRANSACTIONS, transaction_coordinator
from tests.support.counting import PARTITIONS, CountingApp, Crash, StreamingSource, in_thread, outputs
from tests.support.truth.topics import read_all

from tidemark.checks.lag_sampling import check_lag
from tidemark.devstack.broker import EmbeddedCluster
from tidemark.errors import BatchAborted, BrokersAway, ExitCode, TidemarkError
from tidemark.events.event import Event, EventKind
from tidemark.instance.assembly import make_instance
from tidemark.kafka import availability
from tidemark.kafka.availability import find_outage
from tidemark.kafka.offsets import EndOffsets, committed_offsets, describe_group, retry_until_stable
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition, events_topic, transactional_id
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.outage_file import outage_path, read_outage
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

GONE = 3
"""The broker that is killed."""
LONG_S = 15
"""Longer than an instance may wait for a broker, and than a transaction may last."""
EVERY_S = 0.25
"""Between two looks that start clients of their own, which take more processor time than the stream."""


class StreamingApp(CountingApp):
    """An instance in a thread, which goes on until it is told to stop."""

    def __init__(self, settings: Settings, admin: AdminClient, name: str, homes: list[list[int]]) -> None:
        """`homes` are the brokers of each partition of the sink."""
        sink = NewTopic(f"{name}-out", len(homes), replica_assignment=homes, config={"min.insync.replicas": "1"})
        admin.create_topics([sink])[f"{name}-out"].result(60)
        assert wait_until(lambda: f"{name}-out" in partition_counts(admin, settings), 60)
        super().__init__(settings, admin, name)
        brief = {"broker_timeout_ms": 10_000, "transaction_timeout_ms": 6_000, "commit_interval_ms": 50}
        self.settings = self.settings.model_copy(update=brief)

    @contextmanager
    def streaming(
        self, probe: Callable[[str], None] = lambda _point: None, least: int = 1
    ) -> Iterator[list[BaseException]]:
        """Runs while the block does; what it has ended with is in the list, which must be empty at the end.

        A batch has at least `least` records.
        """
        self.instance = make_instance(self.plan, self.settings, 0, "counting", probe)
        source = StreamingSource(self.settings.bootstrap_servers, f"{self.name}-in", threading.Event())
        source.least = least
        with in_thread(self.instance, source) as ended:
            self.ended = ended
            yield ended

    def is_level(self) -> bool:
        """Whether all input is committed."""
        places = [TopicPartition(f"{self.name}-in", number) for number in range(PARTITIONS)]
        ends = EndOffsets(self.admin, 60).of(places)
        found = committed_offsets({"bootstrap.servers": self.settings.bootstrap_servers}, self.name, places, 60)
        return all(place in found and found[place].offset == ends[place] for place in places)

    def drain(self, records: int) -> None:
        """Feed and wait for the commits."""
        self.feed(records)
        assert wait_until(lambda: bool(self.ended) or self.is_level(), 90, EVERY_S), "not all input is committed"
        assert self.ended == []

    def exact(self) -> bool:
        """Whether each update is in the sink once, and the last of each key is its count."""
        found = outputs(self)
        last = {key: max(count for one, count in found if one == key) for key, _ in found}
        return set(found.values()) == {1} and last == dict(self.expected)


@pytest.fixture
def make(
    cluster: EmbeddedCluster,
    settings: Settings,
    tmp_path: Path,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., StreamingApp]:
    """Makes applications on the three brokers."""
    # A broker of a busy machine that needs longer than three seconds for its answer is not away.
    monkeypatch.setattr(availability, "_ANSWER_S", 60.0)
    client_config = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    admin = AdminClient(client_config)
    # Kafka creates the topic of the transactions' coordinators for the first transactional id.
    Producer({**client_config, "transactional.id": "first"}).init_transactions(60)

    def made(name: str, homes: list[list[int]], *, spared: bool = False) -> StreamingApp:
        """With `spared`, the broker that is killed coordinates neither the group nor the transactions of the application."""
        own = settings.model_copy(
            update={
                "bootstrap_servers": cluster.bootstrap,
                "var_dir": tmp_path / name,
                "state_dir": tmp_path / name / "state",
            }
        )
        names = (unique(f"{name}-{number}") for number in count())
        return StreamingApp(own, admin, next(n for n in names if not spared or _is_spared(own, admin, n)), homes)

    return made


def _is_spared(settings: Settings, admin: AdminClient, name: str) -> bool:
    """Whether the broker that is killed coordinates nothing of an application."""
    group = retry_until_stable(lambda: describe_group(settings, admin, name), name, 60).coordinator.id
    transactions = transaction_coordinator(transactional_id(name, 0), admin.list_topics(TRANSACTIONS, timeout=60))
    return GONE not in (group, transactions)


@contextmanager
def without_a_broker(cluster: EmbeddedCluster, app: StreamingApp) -> Iterator[None]:
    """The broker is gone, and the others know it; it is back afterwards."""
    cluster.kill_node(GONE)
    try:
        assert wait_until(lambda: is_offline(app), 60, EVERY_S)
        yield
    finally:
        cluster.start_node(GONE)


def is_offline(app: StreamingApp) -> bool:
    found = find_outage(app.settings, app.name, 0, [f"{app.name}-out"])
    return found is not None and found.why == f"no broker leads {app.name}-out[0]"


def events(app: StreamingApp) -> list[Event]:
    rows = read_all(app.settings.bootstrap_servers, [events_topic(app.name)])
    return [Event.from_json(row.value) for found in rows.values() for row in found]


def test_should_wait_for_an_offline_sink_partition_while_other_applications_go_on(cluster, make, caplog):
    caplog.set_level("INFO")
    # librdkafka may wait for ever for a coordinator that has gone. The instance ends then, so it must be neither one's.
    app, other = make("waits", [[GONE], [1]], spared=True), make("goes-on", [[1], [2]], spared=True)
    partition = f"{app.name}-out[0]"
    with app.streaming() as ended, other.streaming() as other_ended:
        app.drain(5000)
        other.drain(500)
        records = app.instance.size.records
        with without_a_broker(cluster, app):
            app.feed(2000)
            recorded = outage_path(app.settings.var_dir, app.name, 0)
            assert wait_until(lambda: read_outage(recorded) is not None or bool(ended), 60), caplog.text
            assert ended == []
            assert partition in read_outage(recorded).why
            other.drain(500)
            assert not wait_until(lambda: bool(ended), LONG_S), ended
            assert not app.is_level()
            said = [record.getMessage() for record in caplog.records if partition in record.getMessage()]
            assert any("start the broker" in text and "reassign-partitions" in text for text in said), said
            (found,) = [f for f in check_lag(app.plan, app.settings, "counting") if f.subject == partition]
            assert found.verdict is Verdict.FAILED
            assert "the partition has no leader" in found.message
            assert "start its broker again" in found.message
            assert [f for f in check_lag(other.plan, other.settings, "counting") if f.verdict is Verdict.FAILED] == []
        assert wait_until(app.is_level, 60, EVERY_S), caplog.text
        # The batches are as large as before.
        app.drain(5000)
        assert app.instance.size.records == records
        assert wait_until(lambda: read_outage(recorded) is None, 60)
    assert (ended, other_ended) == ([], [])
    kinds = [event.kind for event in events(app) if event.kind in (EventKind.WAITING, EventKind.WAITING_END)]
    assert kinds == [EventKind.WAITING, EventKind.WAITING_END]
    assert app.exact()
    assert other.exact()


def test_should_stop_when_asked_while_it_waits_and_wait_again_after_a_restart(cluster, make):
    """None of this spends the restart budget: the instance ends with 0, and the next one waits as well."""
    app = make("stopped", [[GONE], [1]])
    recorded = outage_path(app.settings.var_dir, app.name, 0)
    with app.streaming() as ended:
        app.drain(500)
    assert ended == []
    with without_a_broker(cluster, app):
        app.feed(500)
        for _ in range(2):
            with app.streaming() as ended:
                assert wait_until(lambda: read_outage(recorded) is not None or bool(ended), 60)
                assert ended == []
            assert ended == []
    with app.streaming() as ended:
        assert wait_until(app.is_level, 90, EVERY_S)
    assert ended == []
    assert app.exact()


@pytest.mark.parametrize("point", ["3-changelogs", "5-offsets"])
def test_should_lose_nothing_when_the_broker_stops_during_a_commit(cluster, make, point):
    """After step 5 the commit succeeds. Before it, the commit may need the partition, and the instance may end with 10.

    Then the partition holds records of an aborted transaction, and Kafka forgets its marker if no broker leads the partition at
    that moment (KAFKA-20734): the next commit must not show them.
    """
    app = make("midway", [[GONE], [1]], spared=True)
    with app.streaming() as ended:
        app.drain(500)
    assert ended == []
    place, killed = TopicPartition(f"{app.name}-out", 0), list[str]()
    ends = EndOffsets(app.admin, 60)
    assert wait_until(lambda: ends.stable([place]) == ends.of([place]), 60)
    before = ends.of([place])[place]

    def kill(reached: str) -> None:
        if reached == point and not killed:
            killed.append(point)
            assert wait_until(lambda: ends.of([place])[place] > before, 60)
            cluster.kill_node(GONE)

    try:
        app.feed(500)
        # All in one batch: a second one would need the partition.
        with app.streaming(kill, least=500) as ended:
            assert wait_until(lambda: bool(killed) and (bool(ended) or is_offline(app)), 90, EVERY_S)
            recorded = outage_path(app.settings.var_dir, app.name, 0)
            wait_until(lambda: bool(ended) or read_outage(recorded) is not None or app.is_level(), 120, EVERY_S)
            # One that waits for the broker goes on waiting.
            wait_until(lambda: bool(ended) or app.is_level(), LONG_S if point == "3-changelogs" else 120, EVERY_S)
        for error in ended:
            assert isinstance(error, TidemarkError), error
            assert error.exit_code is ExitCode.RETRY, error
        assert point == "3-changelogs" or (ended == [] and app.is_level())
    finally:
        cluster.start_node(GONE)
    if point == "5-offsets":
        subject = f"transactions of {app.name}-out[0]"

        def is_told() -> bool:
            # A broker that has just come back is not asked, or does not know it yet.
            found = {finding.subject: finding for finding in check_lag(app.plan, app.settings, "counting")}
            lost = "has lost the marker of its end"
            return subject in found and found[subject].verdict is Verdict.FAILED and lost in found[subject].message

        assert wait_until(is_told, 60, EVERY_S), check_lag(app.plan, app.settings, "counting")
    with app.streaming() as ended:
        assert wait_until(app.is_level, 90, EVERY_S), ended
        # Kafka forgets the marker of a partition that no broker leads (KAFKA-20734): read_committed waits for the next one.
        app.drain(500)
    assert ended == []
    assert app.exact()


@pytest.mark.parametrize("ended_by", ["its process", "its coordinator"])
def test_should_never_show_aborted_records_whose_marker_kafka_has_forgotten(cluster, make, caplog, ended_by):
    """A transaction is aborted while no broker leads a partition that holds its records. The next one must not show them."""
    app, by_process = make("forgotten", [[GONE], [1]], spared=True), ended_by == "its process"
    # The outage must be known before the coordinator itself aborts the transaction.
    timeout_ms = 60_000 if by_process else 30_000
    app.settings = app.settings.model_copy(update={"transaction_timeout_ms": timeout_ms})
    with app.streaming() as ended:
        app.drain(500)
    assert ended == []
    ends, (lost, kept) = EndOffsets(app.admin, 60), [TopicPartition(f"{app.name}-out", n) for n in (0, 1)]
    before, gone = ends.of([kept])[kept], list[str]()

    def is_held(place: TopicPartition) -> bool:
        return ends.stable([place])[place] < ends.of([place])[place]

    with ExitStack() as outage:

        def lose_broker(reached: str) -> None:
            if reached != "4-commit-records" or gone:
                return
            cluster.kill_node(GONE)
            outage.callback(cluster.start_node, GONE)
            assert wait_until(lambda: is_offline(app), 60, EVERY_S)
            gone.append(reached)
            if not by_process:
                raise Crash
            app.instance.committer.producer.abort()
            raise BatchAborted("a commit that is aborted before step 5")

        def end_outage_after_abort() -> None:
            assert wait_until(lambda: bool(gone) and ends.of([kept])[kept] > before and not is_held(kept), 120, EVERY_S)
            outage.close()

        app.feed(500)
        with app.streaming(lose_broker, least=500) as ended:
            if by_process:
                end_outage_after_abort()
                assert wait_until(app.is_level, 90, EVERY_S), ended
            else:
                assert wait_until(lambda: bool(ended), 90, EVERY_S)
        assert [type(error) for error in ended] == ([] if by_process else [Crash])
        if not by_process:
            # A process that asked for the transactional id now would make the coordinator forget how the transaction ended.
            with app.streaming() as ended:
                assert wait_until(lambda: bool(ended), 90, EVERY_S)
            assert isinstance(ended[0], BrokersAway), ended
            assert f"no broker leads {lost}" in str(ended[0])
            end_outage_after_abort()
            assert wait_until(lambda: not is_offline(app), 60, EVERY_S)
            assert is_held(lost)
        with app.streaming() as ended:
            assert wait_until(app.is_level, 90, EVERY_S), ended
            app.drain(500)
    assert ended == []
    assert f"{lost} may have lost the marker" in caplog.text
    assert app.exact()

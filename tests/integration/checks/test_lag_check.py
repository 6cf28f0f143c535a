"""The lag check on a real broker: each bad state is caused, reported, corrected, and then found to be right."""

from __future__ import annotations

import itertools
import json
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from pydantic import SecretStr
from tests.support.counting import CountingApp
from typer.testing import CliRunner

from tidemark.checks.lag_sampling import check_lag
from tidemark.cli import main
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import TopicPartition
from tidemark.processes import wait_until
from tidemark.topology.builder import Topology
from tidemark.verdict import Verdict

pytestmark = pytest.mark.broker
START_MS = 1_700_000_000_000


def copying(name: str) -> Topology:
    topology = Topology(name)
    topology.stream(f"{name}-in", schema="id STRING", key="id").group_by_key().count(store="n").to(f"{name}-out")
    return topology


class Group:
    """An application's topics, and its group moved by hand. Each look happens a minute after the last."""

    def __init__(self, name, settings, admin):
        self.settings = settings.model_copy(update={"num_partitions": 1, "transaction_timeout_ms": 1000})
        self.admin, self.name, self.plan = admin, name, copying(name).plan()
        ensure_user_topics(self.plan, self.settings, admin)
        preflight(self.plan, self.settings, admin)
        minutes = itertools.count()
        self.clock = lambda: START_MS + 60_000 * next(minutes)

    def produce(self, records):
        producer = Producer(librdkafka_config(self.settings))
        for _ in range(records):
            producer.produce(f"{self.name}-in", b"{}", b"k")
        assert producer.flush(60) == 0

    def commit(self, offset):
        consumer = Consumer({**librdkafka_config(self.settings), "group.id": self.name})
        try:
            consumer.commit(offsets=[ClientPartition(f"{self.name}-in", 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    @contextmanager
    def member(self):
        """Somebody reads the partition, and commits nothing."""
        consumer = Consumer({**librdkafka_config(self.settings), "group.id": self.name, "enable.auto.commit": False})
        consumer.subscribe([f"{self.name}-in"])
        try:
            assert wait_until(lambda: consumer.poll(0.2) is None and bool(consumer.assignment()), 60)
            yield
        finally:
            consumer.close()

    def look(self):
        return {finding.subject: finding for finding in check_lag(self.plan, self.settings, "lagging", self.clock)}

    def lag(self):
        return self.look()[f"{self.name}-in[0]"]


@pytest.fixture
def group(settings, admin, unique):
    return Group(unique("lagging"), settings, admin)


def test_should_distinguish_stopped_and_stalled_groups_from_one_that_makes_progress(group):
    group.produce(10)
    assert group.lag().verdict is Verdict.NOT_ENOUGH_EVIDENCE
    group.commit(2)
    assert [group.lag().verdict for _ in range(4)] == [
        Verdict.NOT_ENOUGH_EVIDENCE,  # With the look before, two samples.
        Verdict.OK,  # It moved within the window.
        Verdict.FAILED,
        Verdict.FAILED,
    ]
    assert group.lag().message.startswith("stopped: nothing committed for")
    with group.member():
        assert group.lag().message.startswith("stalled: nothing committed for")
    group.commit(10)
    assert group.lag().verdict is Verdict.OK


def test_should_report_a_group_whose_committed_offset_is_below_the_first_record(group):
    group.produce(10)
    group.commit(2)
    place = ClientPartition(f"{group.name}-in", 0, 6)
    group.admin.delete_records([place])[place].result(60)
    behind = group.lag()
    assert (behind.verdict, behind.evidence["low_offset"]) == (Verdict.FAILED, 6)
    assert "4 offsets are deleted unread" in behind.message
    group.commit(10)
    assert group.lag().verdict is Verdict.OK


def test_should_not_mistake_an_application_whose_group_expired_for_one_that_never_committed(settings, admin, unique):
    app = CountingApp(settings, admin, unique("forgotten"))
    app.feed(50)
    app.run()

    def look():
        found = check_lag(app.plan, app.settings, "forgotten")
        return [finding for finding in found if finding.subject.startswith(f"{app.name}-in[")]

    before = look()
    assert {finding.verdict for finding in before} == {Verdict.OK}
    assert wait_until(lambda: is_deleted(admin, app.name), 60)
    app.feed(50)
    gone = look()
    assert [finding.verdict for finding in gone] == [Verdict.FAILED] * 2
    for finding, was in zip(gone, before, strict=True):
        assert finding.evidence["committed_offset"] is None
        assert finding.evidence["recorded_offset"] == was.evidence["committed_offset"]
        assert "the committed offset is lost: the group was deleted" in finding.message
    # The remedy that is named.
    app.run()
    assert {finding.verdict for finding in look()} == {Verdict.OK}


def is_deleted(admin, group):
    """A group whose last member's session still runs cannot be."""
    try:
        admin.delete_consumer_groups([group])[group].result(60)
    except KafkaException:
        return False
    return True


def test_should_judge_by_the_current_sample_when_the_database_is_away(group, tmp_path):
    group.produce(10)
    group.commit(12)
    away = tmp_path / "no-folder"
    away.touch()
    url = SecretStr(f"sqlite:///{away}/facts.db")
    group.settings = group.settings.model_copy(update={"facts_url": url})
    seen = group.look()
    assert seen[f"{group.name}-in[0]"].verdict is Verdict.FAILED
    assert seen["samples"].verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert "does not answer" in seen["samples"].message
    assert "judged by this sample alone" in seen["samples"].message


def test_should_name_the_open_transaction_that_blocks_read_committed_readers(group):
    group.produce(3)
    group.commit(3)
    name = f"{group.name}-loader"
    writer = Producer(
        {**librdkafka_config(group.settings), "transactional.id": name, "transaction.timeout.ms": 900_000}
    )
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce(f"{group.name}-in", b"{}", b"k")
    assert writer.flush(60) == 0
    subject = f"transactions of {group.name}-in[0]"
    # Young, it is everybody's right.
    assert wait_until(lambda: group.look()[subject].verdict is Verdict.FAILED, 60, every_s=0.1)
    seen = group.look()
    assert f"transaction {name} is open for" in seen[subject].message
    assert "the broker aborts it after 900 s" in seen[subject].message
    assert seen[f"{group.name}-in[0]"].evidence["held_offsets"] == 1
    writer.commit_transaction(60)
    place, ends = TopicPartition(f"{group.name}-in", 0), EndOffsets(group.admin, 60)
    # The record and the marker, for which the commit does not wait.
    assert wait_until(lambda: ends.stable([place])[place] == 5, 60)
    group.commit(5)
    assert [(f.subject, f.verdict) for f in group.look().values()] == [
        (f"{group.name}-in[0]", Verdict.OK),
        ("transactions", Verdict.OK),
    ]


def test_should_end_the_command_with_1_and_keep_its_history_when_a_verdict_is_failed(
    group, settings, monkeypatch, tmp_path
):
    module = group.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(
        "from tidemark.topology.builder import Topology\n\n\ndef topology():\n"
        f"    topology = Topology({group.name!r})\n"
        f"    topology.stream('{group.name}-in', schema='id STRING', key='id').group_by_key().count(store='n')"
        f".to('{group.name}-out')\n    return topology\n"
    )
    monkeypatch.setattr("topologies.__path__", [str(tmp_path)])
    for name, value in group.settings.as_environment().items():
        monkeypatch.setenv(name, value)
    group.produce(4)
    group.commit(9)

    def run(*arguments):
        return CliRunner().invoke(main.build(), ["check", "lag", module, *arguments])

    failed = run("--json")
    assert failed.exit_code == 1, failed.output
    said = json.loads(failed.stdout)
    assert (said["verdict"], said["findings"][0]["evidence"]["committed_offset"]) == ("failed", 9)
    group.commit(4)
    fine = run()
    assert fine.exit_code == 0, fine.output
    assert "verdict: ok" in fine.stdout
    assert [row["verdict"] for row in json.loads(run("--history", "--json").stdout)] == ["ok", "ok", "ok", "failed"]

"""What `tidemark doctor`, `top` and `check skew` ask a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from tests.support.cli_stores import put, store_at
from typer.testing import CliRunner

from tidemark.cli import check
from tidemark.cli.main import build
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import ensure_user_topics
from tidemark.processes import Identity
from tidemark.settings import Settings
from tidemark.supervision.run_file import run_file_path
from tidemark.topology.builder import Topology

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def _found_by_commands(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bootstrap_servers", "var_dir", "state_dir"):
        monkeypatch.setenv(f"TIDEMARK_{name.upper()}", str(getattr(settings, name)))


def run(*arguments: str) -> object:
    done = CliRunner().invoke(build(), [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def fill(bootstrap: str, topic: str, partition: int, keys: list[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for key in keys:
        producer.produce(topic, b"{}", key, partition)
    assert producer.flush(60) == 0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of a busy machine may need longer for an answer than an operator waits."""
    monkeypatch.setattr("tidemark.operations.machine.examination._BROKER_TIMEOUT_MS", 60_000)
    monkeypatch.setattr("tidemark.operations.machine.instance_load._BROKER_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("kafka_jars")
def test_doctor_should_report_the_release_and_the_clock_of_a_real_broker(settings: Settings) -> None:
    done = CliRunner().invoke(build(), ["doctor", "--json"], catch_exceptions=False)
    lines = {line["subject"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["brokers"] == {
        "subject": "brokers", "health": "ok", "found": f"1 of Kafka 4.3 at {settings.bootstrap_servers}", "remedy": "",
    }  # fmt: skip
    # The broker has this machine's clock.
    assert lines["clock"]["health"] == "ok", lines["clock"]
    assert lines["clock"]["found"].startswith("within ")


def test_top_should_show_the_lag_of_the_partitions_that_an_instance_holds(
    settings: Settings, create_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    topic, app = create_topic(unique("in"), 2), unique("app")
    for partition, records in ((0, 30), (1, 7)):
        fill(settings.bootstrap_servers, topic, partition, [b"k"] * records)
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": app})
    consumer.commit(offsets=[ClientPartition(topic, 0, 10), ClientPartition(topic, 1, 7)], asynchronous=False)
    consumer.close()
    own = Identity.own()
    for number, partitions in enumerate(([f"{topic}[0]", f"{topic}[1]"], [f"{topic}[1]"])):
        path = run_file_path(settings.var_dir, app, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            **asdict(own), "application_id": app, "instance": number, "topology": "none",
            "state": "RUNNING", "partitions": partitions, "last_commit_ms": int(time.time() * 1000),
        }  # fmt: skip
        path.write_text(json.dumps(content))
    said = run("top")
    assert isinstance(said, dict)
    assert said["fault"] is None
    assert [each["lag_offsets"] for each in said["instances"]] == [20, 0]


def test_check_skew_should_name_the_key_and_the_task_that_have_most(
    settings: Settings, admin: AdminClient, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(unique("app"))
    stream = topology.stream(unique("in"), schema="id STRING", key="id").group_by_key()
    stream.count(store="n").to(unique("out"))
    plan = topology.plan()
    (source,) = plan.subtopologies[0].source_topics
    ensure_user_topics(plan, settings, admin)
    preflight(plan, settings, admin)
    monkeypatch.setattr(check, "load", lambda _: topology)
    for partition in range(4):
        keys: list[bytes | None] = [b"%d-%d" % (partition, n) for n in range(300)]
        fill(settings.bootstrap_servers, source, partition, keys + [b"hot"] * (2_000 if partition == 2 else 0))
    counts = {"0_0": 2_000, "0_1": 100, "0_2": 100, "0_3": 100}
    for task, count in counts.items():
        store = store_at(Path(settings.state_dir) / "0" / plan.application_id / task / "rocksdb" / "n")
        put(store, 0, range(count))
        store.close()
    said = run("check", "skew", "app")
    assert isinstance(said, dict)
    found = {finding["subject"]: finding for finding in said["findings"]}
    assert said["verdict"] == "warning"
    assert list(found) == [source, "store n"]
    topic = found[source]
    assert "key 'hot' has 62% of the newest 3,200 records, more than an even partition" in topic["message"]
    assert topic["evidence"]["partitions"]["2"]["share"] == round(2_300 / 3_200, 4)
    assert topic["evidence"]["partitions"]["0"]["keys"] == 300
    assert found["store n"]["evidence"]["keys"] == counts
    assert "task 0_0 has 87%" in found["store n"]["message"]
    fewer = run("check", "skew", "app", "--scan", "10")
    assert isinstance(fewer, dict)
    assert fewer["findings"][0]["verdict"] == "not enough evidence"
    history = run("check", "skew", "app", "--history")
    assert isinstance(history, list)
    assert {row["subject"] for row in history} == {source, "store n"}

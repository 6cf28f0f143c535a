"""`tidemark stores`: sizes of real stores and of a real changelog, and the growth between samples."""

from __future__ import annotations

import json
import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.cli_stores import HOUR_MS, put, store_at
from typer.testing import CliRunner

from tidemark.checks.store_growth import history_path, read
from tidemark.cli import main
from tidemark.cli import stores as command
from tidemark.folder_lock import FolderLock
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import ensure_user_topics
from tidemark.store_sizes import folder_bytes
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import tumbling


@pytest.fixture
def application(settings, admin, unique, monkeypatch):
    """An application whose topics exist, and `run`, the command on it."""
    topology = Topology(unique("app"))
    stream = topology.stream(unique("in"), schema="id STRING", key="id").group_by_key()
    # Windows, because Kafka lets no records of a topic be deleted that is only compacted.
    stream.windowed_by(tumbling("60s")).count(store="n").to(unique("out"))
    stream.count(store=Materialized("lost", logging=False)).to(unique("out"))
    plan = topology.plan()
    ensure_user_topics(plan, settings, admin)
    preflight(plan, settings, admin)
    monkeypatch.setattr(command, "load", lambda _: topology)
    for name in ("bootstrap_servers", "var_dir", "state_dir"):
        monkeypatch.setenv(f"TIDEMARK_{name.upper()}", str(getattr(settings, name)))
    return plan.application_id


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main.build(), ["stores", "app", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def measured() -> dict[tuple[str, str], dict]:
    return {(row["task"], row["store"]): row for row in json.loads(run("--json"))}


def fill(bootstrap, topic, records):
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(records):
        producer.produce(topic, b"v" * 100, str(n), partition=1)
    assert producer.flush(60) == 0


@pytest.mark.broker
def test_should_measure_an_open_store_and_its_changelog_and_how_they_grow(application, settings, admin):
    changelog = f"{application}-n-changelog"
    folder = settings.state_dir / "0" / application / "0_1" / "rocksdb" / "n"
    store = store_at(folder)
    put(store, 0, range(40))
    fill(settings.bootstrap_servers, changelog, 50)
    rows = measured()
    assert sorted(rows) == [(f"0_{p}", name) for p in range(4) for name in ("lost", "n")]
    first = rows["0_1", "n"]
    assert (first["holder"], first["keys"], first["offsets_topic"], first["why"]) == ("0", 40, 50, {})
    assert first["bytes_disk"] == folder_bytes(folder)
    assert 50 * 100 < first["bytes_topic"] < 50 * 300
    assert (rows["0_2", "n"]["offsets_topic"], rows["0_2", "n"]["bytes_topic"]) == (0, 0)
    assert rows["0_2", "n"]["why"] == {"keys": "not here", "bytes_disk": "not here"}
    assert rows["0_1", "lost"]["why"]["offsets_topic"] == rows["0_1", "lost"]["why"]["bytes_topic"] == "not logged"

    old = store_at(settings.state_dir / "1" / application / "0_1" / "rocksdb" / "n")
    put(old, 0, range(9))
    old.close()
    with FolderLock(folder.parents[1]):
        rows = [row for row in json.loads(run("--json")) if (row["task"], row["store"]) == ("0_1", "n")]
        assert [(row["holder"], row["is_old"]) for row in rows] == [("0", False), ("1", True)]
        assert "1, old" in run()
    shutil.rmtree(settings.state_dir / "1")

    put(store, 0, range(40, 100))
    fill(settings.bootstrap_servers, changelog, 30)
    admin.delete_records([ClientPartition(changelog, 1, 10)])[ClientPartition(changelog, 1)].result(60)
    last = measured()["0_1", "n"]
    assert (last["keys"], last["offsets_topic"]) == (100, 70)
    assert last["bytes_topic"] > first["bytes_topic"]
    (grown,) = [row for row in json.loads(run("--history", "--json")) if (row["task"], row["store"]) == ("0_1", "n")]
    hours = (last["time_ms"] - first["time_ms"]) / HOUR_MS
    assert grown["samples"] == 4
    for name in ("keys", "bytes_disk", "offsets_topic", "bytes_topic"):
        assert grown[name] == pytest.approx((last[name] - first[name]) / hours)
    store.close()


@pytest.mark.broker
def test_should_print_both_tables_and_say_what_is_unknown_without_java(application, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert "no samples" in run("--history")
    summary = run()
    rows = [line for line in summary.splitlines() if "0_3" in line]
    assert [row.count("no kafka-log-dirs") for row in rows] == [0, 1]
    assert "no kafka-log-dirs: no Java found in JAVA_HOME" in summary
    assert len(read(history_path(settings.var_dir, application))) == 8
    assert "growth per hour" in run("--history")

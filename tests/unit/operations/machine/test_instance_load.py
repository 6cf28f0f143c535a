"""What one frame of `tidemark top` is made of: run files, processes, outages, holds; and the partitions that lag."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import OutcomeUnknown
from tidemark.names import TopicPartition
from tidemark.operations.machine import instance_load as module
from tidemark.operations.machine.instance_load import LagReader, Lags, format_restore, instance_loads, read_with
from tidemark.processes import Identity
from tidemark.settings import Settings
from tidemark.supervision.hold import Hold, take_hold
from tidemark.supervision.local_instances import RunningRestore, local_instances
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage
from tidemark.supervision.run_file import run_file_path, standby_file_path
from tidemark.topology_loader import load

APP = "clicks"
NOW_S = 1_700_000_000.0
RESTORING = {
    "store": "n", "changelog": "clicks-n-changelog[0]", "records": 5, "records_per_second": 2.0, "remaining_s": 12.4,
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(var_dir=tmp_path / "var", state_dir=tmp_path / "state", broker_timeout_ms=100)


def write(path: Path, *, alive: bool = True, **said: Any) -> None:
    """A run file of this process, or of one that is gone."""
    process = Identity.own() if alive else Identity(2**22 + 1, 1.0, "b")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        **asdict(process),
        "state": "RUNNING",
        "application_id": APP,
        "topology": "clicks",
        "instance": 0,
    }
    path.write_text(json.dumps({**content, **said}))


def instance(settings: Settings, number: int = 0, **said: Any) -> None:
    write(run_file_path(settings.var_dir, APP, number), instance=number, **said)


def test_should_say_what_each_instance_says_and_how_much_memory_it_has(settings: Settings) -> None:
    instance(
        settings, batch=7, last_commit_ms=int(NOW_S * 1000) - 4_200, records_per_second=12.5, partitions=["clicks[0]"]
    )
    (found,) = instance_loads(settings, NOW_S, Lags({"clicks-0": 30}))
    one = found.instance
    assert (one.batch, one.seconds_since_commit(NOW_S), one.records_per_second) == (7, 4.2, 12.5)
    assert one.process == Identity.own()
    assert (found.lag_offsets, found.note) == (30, "")
    assert found.memory_bytes is not None
    assert found.memory_bytes >= psutil.Process().memory_info().rss // 2


def test_should_show_standbys_and_instances_that_are_gone(settings: Settings) -> None:
    instance(settings, 0, alive=False, restoring=RESTORING)
    instance(settings, 1, alive=False, state="NOT_RUNNING")
    write(standby_file_path(settings.var_dir, APP, 0), instance="standby-0", useful=True)
    found = {each.instance.name: each for each in instance_loads(settings, NOW_S, Lags({}))}
    assert {name: each.instance.state for name, each in found.items()} == {
        "clicks-0": "LOST", "clicks-1": "NOT_RUNNING", "clicks-standby-0": "RUNNING",
    }  # fmt: skip
    assert [each.memory_bytes is None for each in found.values()] == [True, True, False]
    assert found["clicks-0"].note == ""


def test_a_run_file_that_says_nothing_should_be_left_out(settings: Settings) -> None:
    instance(settings)
    folder = settings.var_dir / "instances"
    for name, text in (
        ("x-0", '{"pid": 1'),
        ("x-1", "[]"),
        ("x-2", '{"pid": 1, "started_after_boot_s": 1, "boot_id": "b"}'),
    ):
        (folder / f"{name}.json").write_text(text)
    assert [instance.name for instance in local_instances(settings.var_dir, NOW_S)] == ["clicks-0"]


def test_should_say_why_an_instance_waits(settings: Settings) -> None:
    instance(settings, restoring=RESTORING)
    (found,) = instance_loads(settings, NOW_S, Lags({}))
    assert found.note == "restores n of clicks-n-changelog[0], 12 s left"
    take_hold(settings.var_dir, APP, Hold("me", "tidemark restore run clicks", 5))
    assert instance_loads(settings, NOW_S, Lags({}))[0].note == "held by me"
    write_outage(outage_path(settings.var_dir, APP, 0), RecordedOutage(1, "no broker answers", ()))
    assert instance_loads(settings, NOW_S, Lags({}))[0].note == "waits for brokers: no broker answers"


@pytest.mark.parametrize(("remaining_s", "text"), [(None, "restores n of c[0]"), (0.4, "restores n of c[0], 0 s left")])
def test_should_say_what_is_restored(remaining_s: float | None, text: str) -> None:
    assert format_restore(RunningRestore(0, "n", "c[0]", 5, 2.0, remaining_s, None)) == text


def test_the_other_sources_of_a_task_should_count_as_read() -> None:
    plan = load("patient_monitoring").plan()
    (subtopology,) = plan.subtopologies
    assert len(subtopology.source_topics) == 3
    found = read_with(plan, [TopicPartition(subtopology.lead.topic, 1), TopicPartition("unknown", 0)])
    assert found == sorted(
        [*(TopicPartition(topic, 1) for topic in subtopology.source_topics), TopicPartition("unknown", 0)]
    )


class Ends:
    """Ends at 100, or a broker that does not answer."""

    fault: Exception | None = None

    def of(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.fault:
            raise self.fault
        return dict.fromkeys(places, 100)


@pytest.fixture
def reader(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> LagReader:
    """A reader of a group that has committed 10 + partition in `clicks`, and nothing elsewhere."""
    made = LagReader(settings)
    monkeypatch.setattr(made, "_ends", Ends())

    def committed(
        _: object, group: str, places: list[TopicPartition], __: float
    ) -> dict[TopicPartition, ClientPartition]:
        assert group == APP
        return {p: ClientPartition(p.topic, p.partition, 10 + p.partition) for p in places if p.topic == "clicks"}

    monkeypatch.setattr(module, "committed_offsets", committed)
    return made


def read(reader: LagReader, settings: Settings) -> Lags:
    return reader.read(local_instances(settings.var_dir, time.time()))


def test_lag_should_be_that_of_the_partitions_that_an_instance_holds(reader: LagReader, settings: Settings) -> None:
    instance(settings, 0, partitions=["clicks[0]", "clicks[2]"])
    instance(settings, 1, partitions=["clicks[1]"])
    instance(settings, 2, partitions=[])
    instance(settings, 3, partitions=["clicks[3]"], alive=False)
    write(standby_file_path(settings.var_dir, APP, 0), instance="standby-0", partitions=["0_0"])
    assert read(reader, settings) == Lags({"clicks-0": 178, "clicks-1": 89})


def test_lag_should_not_be_known_before_everything_was_committed_once(reader: LagReader, settings: Settings) -> None:
    assert load("clicks").plan().subtopologies[1].lead.topic == "clicks-by-page-repartition"
    instance(settings, 0, partitions=["clicks[0]", "clicks-by-page-repartition[0]"])
    assert read(reader, settings) == Lags({})


def test_lag_should_be_known_without_the_module_of_the_topology(reader: LagReader, settings: Settings) -> None:
    instance(settings, 0, topology="deleted", partitions=["clicks[0]"])
    assert read(reader, settings) == Lags({"clicks-0": 90})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OutcomeUnknown("no answer"), "the lag is not known: no answer"),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), "the lag is not known: Local: Timed out"),
    ],
)
def test_a_silent_broker_should_be_a_fault_and_no_error(
    reader: LagReader, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    instance(settings, 0, partitions=["clicks[0]"])
    monkeypatch.setattr(Ends, "fault", error)
    assert read(reader, settings) == Lags({}, said)

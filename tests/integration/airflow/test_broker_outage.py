"""Supervision of a stream whose broker is away, with the real instance, which ends before it starts Spark."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.airflow.stream_bench import Bench
from tests.support.airflow.stream_task import Task

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.settings import Settings, project_root
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, read_json
from tidemark.supervision.launch import Command
from tidemark.supervision.outage_file import read_outage
from tidemark_airflow import stream_trigger
from tidemark_airflow.stream_trigger import BrokerTrigger, StreamTrigger

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

_PROGRAM = project_root() / "spark_jobs" / "stream_instance.py"


class RealBench(Bench):
    """`patient_monitoring` as `spark_jobs/stream_instance.py` runs it, without spark-submit."""

    @property
    def command(self) -> Command:
        argv = (sys.executable, str(_PROGRAM), "--topology", self.topology, "--instance", "0")
        return replace(super().command, argv=argv, script=str(_PROGRAM))

    def exit_code(self) -> object:
        self.await_end(180)
        recorded = read_json(self.files.exit)
        return recorded["exit_code"] if isinstance(recorded, dict) else None


@pytest.fixture
def away(mark: str, kafka_jars: list[Path], tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that has never been started."""
    broker = EmbeddedBroker(tmp_path / "broker", kafka_jars)
    yield broker
    broker.stop()


@pytest.fixture
def task(_outside_of_a_worker: None, away: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task of an instance whose broker is away; it may be relaunched once."""
    settings = Settings.load(
        bootstrap_servers=away.bootstrap, var_dir=tmp_path / "var", state_dir=tmp_path / "state", broker_timeout_ms=1000
    )
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stream_trigger, "_SETTLE_S", 0.0)
    files = InstanceFiles(settings.var_dir, InstanceKey("patient-monitoring", 0))
    return Task(RealBench(settings, files, "patient_monitoring"), max_restarts=1)


def test_should_wait_for_an_absent_broker_without_spending_the_budget_and_continue_when_it_returns(
    task: Task, away: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = task.bench
    assert isinstance(bench, RealBench)
    task.step()
    for _ in range(3):
        assert bench.exit_code() == 10, bench.log()
        outage = read_outage(bench.files.outage)
        assert outage is not None
        assert away.bootstrap in outage.why
        trigger = task.resume(10)
        assert isinstance(trigger, BrokerTrigger)
        assert isinstance(task.step("relaunch", event={}), StreamTrigger)
    assert bench.exit_code() == 10
    assert task.context["task_state_store"].get("restarts") is None
    # A broker that has just started may need longer for an answer than the second in which the launches gave up.
    monkeypatch.setenv("TIDEMARK_BROKER_TIMEOUT_MS", "60000")
    waited = asyncio.run(_back_after(_as_a_triggerer_builds_it(task.resume(10)), away))
    assert waited < 30, "seconds after the broker answers"
    task.bench = replace(bench, settings=bench.settings.model_copy(update={"broker_timeout_ms": 60_000}))
    task.step("relaunch", event={})
    # Its topics are missing, which a person has to mend: it has got as far as asking the broker for them.
    assert bench.exit_code() == 30, bench.log()
    assert "does not exist" in bench.log()
    assert read_outage(bench.files.outage) is None


def _as_a_triggerer_builds_it(trigger: object) -> BrokerTrigger:
    assert isinstance(trigger, BrokerTrigger)
    return BrokerTrigger(**trigger.serialize()[1])


async def _back_after(trigger: BrokerTrigger, away: EmbeddedBroker) -> float:
    """Start the broker while the trigger waits; the seconds from its answer to the event."""

    async def first() -> None:
        async for _ in trigger.run():
            return

    waiting = asyncio.create_task(first())
    done, _ = await asyncio.wait([waiting], timeout=5)
    assert not done, "it fired while no broker answered"
    await asyncio.to_thread(away.start)
    back = time.monotonic()
    await asyncio.wait_for(waiting, 60)
    return time.monotonic() - back


def test_should_launch_when_only_some_of_the_brokers_stay_away(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.kafka import availability

    partial = availability.Outage("no broker leads pulse[0]", is_partial=True)
    monkeypatch.setattr(availability, "find_outage", lambda *_: partial)
    files = task.bench.files
    until = time.time() + 2
    trigger = BrokerTrigger(str(files.var_dir), files.key.application_id, 0, until=until)

    async def first() -> None:
        async for _ in trigger.run():
            return

    asyncio.run(asyncio.wait_for(first(), 60))
    assert time.time() >= until
    whole = replace(partial, is_partial=False)
    monkeypatch.setattr(availability, "find_outage", lambda *_: whole)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(first(), 4))

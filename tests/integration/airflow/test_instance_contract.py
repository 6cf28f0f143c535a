"""The contract between an instance and its supervisor, checked on the fake that other tests use and on the real one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.airflow.stream_bench import Bench
from tests.support.brokers import brief

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.errors import ExitCode
from tidemark.kafka.topics import user_topics
from tidemark.names import TopicPartition
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, read_json
from tidemark.supervision.launch import Command, launch_or_adopt
from tidemark.supervision.liveness import observe
from tidemark.supervision.run_file import RunView
from tidemark.supervision.state import InstanceState
from tidemark.supervision.stop import ask_to_stop, kill_rest
from tidemark.topology_loader import load
from tidemark_airflow.command import spark_command

REAL = "patient_monitoring"
# A JVM, Spark and a first join of the group on a small machine.
START_S = 240.0
STOP_S = 90.0
# Its driver and its JVM may need longer on a busy machine than an operator waits.
GRACE_S = 80.0
# The instance that is fenced learns it at its next commit or heartbeat.
FENCED_S = 60.0


@dataclass(frozen=True)
class Program:
    """An instance to hold to the contract. `elsewhere` starts a second copy as another machine would."""

    topology: str
    files: InstanceFiles
    command: Command
    elsewhere: Command
    make_ready: Callable[[], None]
    make_refuse: Callable[[], None]
    feed: Callable[[], None]

    def await_state(self, state: InstanceState) -> RunView:
        """Wait until the living instance says that it is in a state."""

        def reached() -> bool:
            run = observe(self.files).run
            return run is not None and run.state == state

        assert wait_until(reached, START_S), self.log()
        run = observe(self.files).run
        assert run is not None
        return run

    def exit_code(self, timeout_s: float) -> int:
        """Wait for the end of the launched copy."""
        assert wait_until(lambda: read_json(self.files.exit) is not None, timeout_s), self.log()
        recorded = read_json(self.files.exit)
        assert isinstance(recorded, dict)
        return int(recorded["exit_code"])

    def log(self) -> str:
        """What it wrote."""
        return self.files.log.read_text()


@pytest.fixture
def fake(bench: Bench) -> Program:
    return Program(
        topology=bench.topology,
        files=bench.files,
        command=bench.command,
        elsewhere=bench.command,
        make_ready=lambda: None,
        make_refuse=lambda: bench.order(exit_code=int(ExitCode.REFUSED)),
        feed=lambda: None,
    )


@pytest.fixture
def own_broker(mark: str, kafka_jars: list[Path], tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Application and topics have fixed names, so a broker that nobody else uses."""
    with brief(EmbeddedBroker(tmp_path / "broker", kafka_jars)) as running:
        yield running


@pytest.fixture
def real(own_broker: EmbeddedBroker, spark_jars: list[Path], tmp_path: Path) -> Iterator[Program]:
    settings = Settings.load(
        bootstrap_servers=own_broker.bootstrap,
        var_dir=tmp_path / "var",
        state_dir=tmp_path / "state",
        spark_master="local[2]",
        replication_factor=1,
    )
    files = InstanceFiles(settings.var_dir, InstanceKey(load(REAL).application_id, 0))
    command = spark_command(settings, REAL, files, "spark_default")
    other = {
        **command.environment,
        "TIDEMARK_STATE_DIR": str(tmp_path / "other"),
        "TIDEMARK_VAR_DIR": str(tmp_path / "v2"),
    }
    elsewhere = replace(command, environment=other)

    def make_ready() -> None:
        admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
        made = admin.create_topics([NewTopic(topic, 4, 1) for topic in user_topics(load(REAL).plan())])
        for future in made.values():
            future.result(60)

    def feed() -> None:
        from confluent_kafka import Producer

        now = int(time.time() * 1000)
        producer = Producer({"bootstrap.servers": own_broker.bootstrap, "partitioner": "murmur2_random"})
        for number in range(100):
            value = f'{{"patient_id": "p{number}", "beat_ms": {now}, "ibi_ms": 800, "recording": "r"}}'
            producer.produce("pulse-events", value, f"p{number}")
        producer.flush()

    yield Program(REAL, files, command, elsewhere, make_ready, lambda: None, feed)
    kill_rest(observe(files))


@pytest.fixture(
    params=["fake", pytest.param("real", marks=[pytest.mark.broker, pytest.mark.spark, pytest.mark.crash])],
)
def program(request: pytest.FixtureRequest) -> Program:
    made: Program = request.getfixturevalue(request.param)
    return made


def test_should_identify_itself_and_end_with_the_documented_exit_codes(program: Program) -> None:
    program.make_ready()
    launched = launch_or_adopt(program.files, program.command).seen.launch
    assert launched is not None
    run = program.await_state(InstanceState.RUNNING)

    # The process is the Python driver's, in the session of the supervisor.
    assert program.command.script in psutil.Process(run.process.pid).cmdline()[1:3]
    assert os.getsid(run.process.pid) == launched.pid
    assert run.values["application_id"] == program.files.key.application_id
    assert run.values["topology"] == program.topology
    assert run.values["instance"] == 0
    assert run.values["partitions"]
    # Who watches the deadline asks the broker for these.
    leads = [topics[0] for topics in run.values["sources"]]
    assert {TopicPartition.parse(place).topic for place in run.values["partitions"]} <= set(leads)

    # The file is rewritten while nothing happens: that is the sign of life.
    assert wait_until(lambda: program.files.run.stat().st_mtime > run.written_at + 1, 60)

    # A second copy of the instance, as another machine would start it, fences the first.
    second = subprocess.Popen(
        program.elsewhere.argv,
        env=dict(program.elsewhere.environment),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        # A copy that has nothing to commit need not notice, so both get something to do.
        deadline = time.monotonic() + START_S + FENCED_S
        while read_json(program.files.exit) is None and time.monotonic() < deadline:
            program.feed()
            wait_until(lambda: read_json(program.files.exit) is not None, 2)
        assert program.exit_code(5) == ExitCode.FENCED
        assert "tidemark: " in program.log()
    finally:
        for process in [*psutil.Process(second.pid).children(recursive=True), psutil.Process(second.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        second.wait()


def test_should_end_cleanly_on_sigterm(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.supervision.launch.STOP_GRACE_S", GRACE_S)
    program.make_ready()
    launch_or_adopt(program.files, program.command)
    program.await_state(InstanceState.RUNNING)
    ask_to_stop(observe(program.files))
    assert program.exit_code(STOP_S) == ExitCode.OK
    last = RunView.read(program.files.run)
    assert last is not None
    assert last.state == InstanceState.NOT_RUNNING


def test_should_refuse_with_one_line_that_names_the_cause_when_it_cannot_start(program: Program) -> None:
    program.make_refuse()
    launch_or_adopt(program.files, program.command)
    assert program.exit_code(START_S) == ExitCode.REFUSED
    assert len([line for line in program.log().splitlines() if line.startswith("tidemark: ")]) == 1

"""`tidemark up` and `tidemark down`: a broker and Airflow on this machine, recorded in one file.

`up` keeps the parts that run and starts the others, so it also repairs a stack of which a part died. If settings have changed,
it starts Airflow's parts again. `down` ends the recorded parts, then every process that carries the stack's mark: nothing that
a part started survives it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tidemark import processes
from tidemark.devstack import airflow_parts, archives, ports, record
from tidemark.devstack.airflow import AirflowApi, AirflowRefused
from tidemark.devstack.broker import EmbeddedBroker, answers, cluster_id_of
from tidemark.devstack.record import AirflowAccess, Service, StackRecord
from tidemark.errors import PreflightFailed
from tidemark.kafka import jars, java
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import brokers_answer
from tidemark.settings import Settings, project_root, stack_file
from tidemark.supervision.local_instances import local_instances

logger = logging.getLogger(__name__)

BROKER = "broker"
BROKER_PORT = 9092
AIRFLOW_PORT = 8080
READY_TIMEOUT_S = 120.0
# A stream instance finishes its batch on SIGTERM, which takes up to 15 s.
INSTANCE_STOP_S = 20.0
# Orphans of a crash are left; Airflow's idle workers ignore SIGTERM.
SWEEP_S = 5.0


@dataclass(frozen=True)
class Up:
    """The result of `up`: the record, and the names of the parts it started; the others ran already."""

    record: StackRecord
    started: tuple[str, ...]


def up(settings: Settings, *, with_airflow: bool = True) -> Up:
    """Start every part and wait until it answers. Blocks (10 s; half a minute the first time).

    The first time, a process stays that archives classes beside the parts, so that later JVMs start faster.

    Brokers whose address is set, or was set at an earlier `up`, are the user's own: they are not started, only checked. Raises
    `PreflightFailed` with the part and its log; parts that were started stay, for the next `up` or `down`.
    """
    java.find()
    with record.locked(settings.var_dir):
        known = record.load(settings.var_dir) or StackRecord(stack_id=str(uuid.uuid4()), started_at=time.time())
        # Saved before anything starts, so that `down` knows the mark whatever happens from here on.
        record.save(known, settings.var_dir)
        return _Starter(settings, known).run(with_airflow)


def down(settings: Settings, report: Callable[[str], None] = print) -> int:
    """End the stack; return how many processes were ended, 0 if there is no stack. Blocks (up to 45 s)."""
    with record.locked(settings.var_dir):
        known = record.load(settings.var_dir)
        if known is None:
            return 0
        before = {process.pid for process in processes.carrying(known.stack_id)}
        airflow = [service.identity for name, service in known.services.items() if name != BROKER]
        # First the parts that could start something, then the streams, which need the broker for their last commit.
        _end_together("Airflow", airflow, 15.0, report)
        _end_together("streams", _instances(settings, before), INSTANCE_STOP_S, report)
        broker = known.services.get(BROKER)
        spared = {broker.pid} if broker else set()
        processes.sweep(known.stack_id, SWEEP_S, spare=spared)
        if broker:
            _end_together("broker", [broker.identity], 20.0, report)
        processes.sweep(known.stack_id, SWEEP_S)
        stack_file(settings.var_dir).unlink(missing_ok=True)
        return len(before)


def _instances(settings: Settings, marked: set[int]) -> list[processes.Identity]:
    found = [instance.process for instance in local_instances(settings.var_dir, time.time())]
    return [process for process in found if process is not None and process.pid in marked]


def _end_together(
    name: str, identities: list[processes.Identity], timeout_s: float, report: Callable[[str], None]
) -> None:
    alive = [identity for identity in identities if identity.is_alive()]
    if not alive:
        return
    report(f"stopping {name}")
    with ThreadPoolExecutor(len(alive)) as pool:
        list(pool.map(lambda identity: processes.stop(identity, timeout_s), alive))


class _Starter:
    """One run of `up`."""

    def __init__(self, settings: Settings, known: StackRecord) -> None:
        self._settings = settings
        self._record = known
        self._saving = Lock()
        self._started: list[str] = []

    def run(self, with_airflow: bool) -> Up:
        console = Console(stderr=True)
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
        external = self._external_address()
        if with_airflow:
            jars.ensure("spark", self._settings)
        with Progress(*columns, console=console) as progress, ThreadPoolExecutor(2) as pool:
            work: list[Future[None]] = []
            if external is None:
                kafka = jars.ensure("kafka", self._settings)
                port = self._broker_port()
                address = f"{ports.LOOPBACK}:{port}"
                task = progress.add_task(f"broker at {address}", total=1)
                work.append(pool.submit(_finishing, progress, task, partial(self._broker, kafka, port)))
            elif brokers_answer(
                {**librdkafka_config(self._settings), "bootstrap.servers": external},
                self._settings.broker_timeout_ms / 1000,
            ):
                address = external
                self._record.settings["bootstrap_servers"] = address
                self._save()
            else:
                raise PreflightFailed(
                    f"no Kafka broker answers at {external} with security_protocol {self._settings.security_protocol}: start "
                    "it, check the settings of TLS and login, or, to start one here, unset TIDEMARK_BOOTSTRAP_SERVERS and run "
                    "`tidemark down` first"
                )
            if with_airflow:
                settings = self._settings.model_copy(update={"bootstrap_servers": address})
                task = progress.add_task("Airflow", total=1)
                report = partial(_describe, progress, task)
                work.append(pool.submit(_finishing, progress, task, lambda: self._airflow(settings, report)))
            for future in work:
                future.result()
        if with_airflow and BROKER in self._record.services:
            self._archive_classes()
        return Up(self._record, tuple(self._started))

    def _external_address(self) -> str | None:
        """Return the address of the user's own brokers; None if the broker is a part of this stack."""
        broker = self._record.services.get(BROKER)
        own = f"{ports.LOOPBACK}:{broker.port}" if broker else None
        # What is not set is as an earlier `up` recorded it. The default's value says nothing: a user's broker may listen there.
        is_set = "bootstrap_servers" in self._settings.model_fields_set
        address = self._settings.bootstrap_servers if is_set else self._record.settings.get("bootstrap_servers")
        return None if address in {None, own} else address

    def _broker_port(self) -> int:
        service = self._record.services.get(BROKER)
        if service is None:
            return ports.choose(BROKER_PORT)
        return service.port if service.identity.is_alive() else ports.choose(service.port)

    def _broker(self, kafka: list[Path], port: int) -> None:
        folder = self._settings.var_dir / "kafka"
        if self._is_alive(BROKER):
            self._record.settings["bootstrap_servers"] = f"{ports.LOOPBACK}:{port}"
            self._save()
            address, cluster_id = f"{ports.LOOPBACK}:{port}", cluster_id_of(folder)
            if processes.wait_until(lambda: answers(address, cluster_id=cluster_id), READY_TIMEOUT_S):
                return
            raise PreflightFailed(f"the broker runs but does not answer (log: {self._record.services[BROKER].log})")
        broker = EmbeddedBroker(
            folder,
            kafka,
            port,
            environment=airflow_parts.base_environment(self._settings, self._record.stack_id),
        )
        broker.launch()
        if broker.identity:
            # Recorded together with the process, because an address without a part of this stack is the user's own.
            self._record.settings["bootstrap_servers"] = broker.bootstrap
            self._remember(BROKER, broker.identity, port, broker.log)
        broker.wait_ready()

    def _archive_classes(self) -> None:
        """Start a process that archives classes, if they are not. It gives way to the streams, which a user waits for."""
        if not archives.is_archive_missing(self._settings) or archives.is_at_work():
            return
        command = [sys.executable, "-m", "tidemark.cli.main", "jars", "kafka", "spark"]
        log = self._settings.var_dir / "log" / "class-data.log"
        environment = airflow_parts.base_environment(self._settings, self._record.stack_id)
        try:
            processes.give_way(processes.start(command, log, environment, project_root()).pid)
        except OSError as failed:
            # Without archives, JVMs only start slower.
            logger.warning("failed to start the process that archives classes: %s", failed)

    def _airflow(self, settings: Settings, report: Callable[[str], None]) -> None:
        wanted = _digest(settings)
        if self._record.airflow_settings != wanted:
            # The parts read their settings once, at their start, and streams that they launch inherit them.
            self._stop_airflow()
            self._record.airflow_settings = wanted
            self._save()
        known = self._record.services.get("api-server")
        taken = {service.port for service in self._record.services.values()} - {known.port if known else 0}
        adopted = known is not None and known.identity.is_alive()
        port = known.port if known and adopted else ports.choose(known.port if known else AIRFLOW_PORT, taken)
        if known and port != known.port:
            self._stop_airflow()
        environment = airflow_parts.environment(settings, self._record.stack_id, port)
        report("Airflow: brings its database up to date")
        airflow_parts.prepare(settings, environment)
        url = f"http://{ports.LOOPBACK}:{port}"
        passwords = str(airflow_parts.password_file(settings))
        self._record.airflow = AirflowAccess(url, airflow_parts.ADMINISTRATOR, passwords)
        begun = 0.0
        for part in airflow_parts.PARTS:
            if not self._is_alive(part):
                begun = begun or time.time()
                self._start_part(part, port, environment, settings)
        self._wait_for_airflow(AirflowApi.of(self._record.airflow), begun, report)
        report("Airflow")

    def _start_part(self, part: str, port: int, environment: dict[str, str], settings: Settings) -> None:
        earlier = self._record.services.get(part)
        if earlier:
            # Processes that a killed part started in its session would hold its port, or run beside the new part.
            processes.sweep(self._record.stack_id, SWEEP_S, session=earlier.pid)
        log = airflow_parts.home(settings) / "logs" / f"{part}.log"
        identity = processes.start(airflow_parts.command(part), log, environment, project_root())
        self._remember(part, identity, port if part == "api-server" else 0, log)

    def _wait_for_airflow(self, api: AirflowApi, begun: float, report: Callable[[str], None]) -> None:
        """Wait until every part reports that it is healthy, and those that were just started have done so since."""
        missing: list[str] = []
        dead: list[str] = []
        started = {part.replace("-", "_") for part in self._started}

        def is_ready() -> bool:
            dead[:] = [part for part in airflow_parts.PARTS if not self._is_alive(part)]
            missing[:] = api.unhealthy()
            if begun and not missing:
                missing[:] = [part for part in api.unhealthy(since=begun) if part in started]
            if not missing and not _accepts_password(api):
                missing[:] = ["api-server"]
            if missing:
                report(f"Airflow: waits for {', '.join(missing)}")
            return bool(dead) or not missing

        processes.wait_until(is_ready, READY_TIMEOUT_S, every_s=0.25)
        if dead or missing:
            part = (dead or missing)[0].replace("_", "-")
            log = (
                self._record.services[part].log if part in self._record.services else airflow_parts.home(self._settings)
            )
            state = "ended while it started" if dead else f"did not become healthy within {READY_TIMEOUT_S:.0f} s"
            raise PreflightFailed(f"Airflow's {part} {state}: see {log}, then run `tidemark up` again")

    def _stop_airflow(self) -> None:
        services = [self._record.services[part].identity for part in airflow_parts.PARTS if self._is_alive(part)]
        _end_together("Airflow", services, 15.0, lambda _: None)

    def _is_alive(self, name: str) -> bool:
        service = self._record.services.get(name)
        return service is not None and service.identity.is_alive()

    def _remember(self, name: str, identity: processes.Identity, port: int, log: Path) -> None:
        with self._saving:
            self._record.services[name] = Service(
                identity.pid, identity.started_after_boot_s, identity.boot_id, port, str(log)
            )
            self._started.append(name)
            record.save(self._record, self._settings.var_dir)

    def _save(self) -> None:
        with self._saving:
            record.save(self._record, self._settings.var_dir)


def _digest(settings: Settings) -> str:
    """Return a text that differs for other settings, and from which no password can be read."""
    return hashlib.sha256(json.dumps(settings.as_environment(), sort_keys=True).encode()).hexdigest()


def _accepts_password(api: AirflowApi) -> bool:
    """Return whether the Airflow that answers is this stack's: another one on its port refuses the generated password."""
    try:
        api.log_in()
    except AirflowRefused:
        return False
    return True


def _describe(progress: Progress, task: TaskID, text: str) -> None:
    progress.update(task, description=text)


def _finishing(progress: Progress, task: TaskID, work: Callable[[], None]) -> None:
    work()
    progress.update(task, completed=1)

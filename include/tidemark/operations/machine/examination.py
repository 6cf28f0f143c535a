"""Finds out the facts about this machine, and hands them to `diagnosis`. Every function blocks; none changes anything."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.clock import wall_clock_ms
from tidemark.devstack import airflow_parts, ports, record
from tidemark.devstack.airflow import HEARTBEATS, AirflowApi
from tidemark.devstack.record import StackRecord
from tidemark.devstack.stack import AIRFLOW_PORT, BROKER, BROKER_PORT
from tidemark.errors import InvalidSettings, PreflightFailed, TidemarkError
from tidemark.kafka import jars, java
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import describe_replicas
from tidemark.kafka.tools import kafka_tool, tool_rows
from tidemark.names import TopicPartition
from tidemark.operations.disk_space import existing_part
from tidemark.operations.machine.diagnosis import (
    Diagnosis,
    Health,
    PortState,
    healthy,
    judge_airflow,
    judge_brokers,
    judge_clock,
    judge_disk,
    judge_jars,
    judge_packages,
    judge_permissions,
    judge_port,
    judge_python,
    judge_silence,
)
from tidemark.settings import Settings, project_root, settings_file, stack_file
from tidemark.store_sizes import folder_bytes

_BROKER_TIMEOUT_MS = 5_000
"""The longest wait for brokers: somebody is waiting for the answer."""
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: \\)?$")
_RELEASE = re.compile(r"Feature: metadata\.version\s.*SupportedMaxVersion: (\d+\.\d+)")


def examine(settings: Settings | None) -> list[Diagnosis]:
    """Return what is found, in the order of what builds on what. Nothing is asked for that needs settings if there are none.

    Blocks for as long as the slowest part, which is two of Kafka's tools, about 5 s.
    """
    parts: list[Callable[[], list[Diagnosis]]] = [
        lambda: [judge_python(sys.version_info[:3])],
        lambda: [judge_packages(locked_versions(project_root() / "requirements.txt"), installed_versions())],
        lambda: [examine_java()],
    ]
    if settings is not None:
        known = _Machine(settings, _recorded(settings))
        parts += [known.jars, known.ports, known.disks, known.permissions, known.brokers, known.airflow]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [line for found in pool.map(lambda part: part(), parts) for line in found]


def examine_settings() -> tuple[Settings | None, Diagnosis]:
    """Return the settings, and whether they can be used."""
    file = settings_file()
    try:
        settings = Settings.load()
        librdkafka_config(settings)
    except InvalidSettings as error:
        return None, Diagnosis(
            "settings", Health.PROBLEM, str(error), "correct it; docs/settings.md lists all settings"
        )
    return settings, healthy("settings", f"read from {file}" if file.exists() else f"defaults: there is no {file}")


def examine_java() -> Diagnosis:
    """Return which Java is used."""
    try:
        found = java.find()
    except PreflightFailed as error:
        what, _, remedy = str(error).partition(": ")
        return Diagnosis("Java", Health.PROBLEM, what, remedy)
    return healthy("Java", f"{found.version} in {found.home}")


def locked_versions(file: Path) -> dict[str, str] | None:
    """Return the versions in a lock by normalised name; None if the file does not exist."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    found = (_LOCKED.match(line) for line in lines)
    return {_normalised(match[1]): match[2] for match in found if match}


def installed_versions() -> dict[str, str]:
    """Return the versions of all packages that this interpreter finds, by normalised name."""
    return {_normalised(each.metadata["Name"]): each.version for each in importlib.metadata.distributions()}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _recorded(settings: Settings) -> StackRecord | None:
    try:
        return record.load(settings.var_dir)
    except PreflightFailed:
        return None


@dataclass(frozen=True)
class _Machine:
    """The parts of this machine that the settings name, and the stack that `tidemark up` has recorded."""

    settings: Settings
    stack: StackRecord | None

    def jars(self) -> list[Diagnosis]:
        folder = jars.jar_folder(self.settings)
        return [
            judge_jars(
                name, [jar.file_name for jar in jars.missing(jars.listed(name), folder)], len(jars.listed(name)), folder
            )
            for name in ("kafka", "spark")
        ]

    def ports(self) -> list[Diagnosis]:
        return [judge_port(self._port(BROKER, BROKER_PORT)), judge_port(self._port("api-server", AIRFLOW_PORT))]

    def _port(self, service: str, default: int) -> PortState:
        known = self.stack.services.get(service) if self.stack else None
        port = known.port if known and known.port else default
        return PortState(service, port, known is not None and known.identity.is_alive(), ports.is_free(port))

    def disks(self) -> list[Diagnosis]:
        state_dir, var_dir = self.settings.state_dir, self.settings.var_dir
        state_bytes = folder_bytes(state_dir)
        # A folder may be on a disk of its own.
        return [
            judge_disk("state_dir", state_dir, shutil.disk_usage(existing_part(state_dir)).free, state_bytes),
            judge_disk("var_dir", var_dir, shutil.disk_usage(existing_part(var_dir)).free, 0),
        ]

    def permissions(self) -> list[Diagnosis]:
        settings = self.settings
        var_dir = settings.var_dir
        private = [
            var_dir, settings.state_dir, stack_file(var_dir), var_dir / "facts.db", var_dir / "instances",
            airflow_parts.home(settings), airflow_parts.password_file(settings), airflow_parts.secrets_file(settings),
        ]  # fmt: skip
        if "://" not in settings.savepoint_location:
            private.append(Path(settings.savepoint_location))
        if settings.ssl_certificate_location:
            private.append(Path(settings.ssl_certificate_location))
        return [judge_permissions({path: path.stat().st_mode for path in private if path.exists()})]

    def brokers(self) -> list[Diagnosis]:
        settings = self.settings.model_copy(
            update={"broker_timeout_ms": min(self.settings.broker_timeout_ms, _BROKER_TIMEOUT_MS)}
        )
        addresses = settings.bootstrap_servers
        try:
            brokers, topics = describe_replicas(AdminClient(librdkafka_config(settings)), settings)
        except TidemarkError as error:
            default = Settings.model_fields["bootstrap_servers"].default
            is_recorded = self.stack is not None and BROKER in self.stack.services
            reason = str(error)
            return [judge_silence(addresses, reason, is_default=addresses == default, is_recorded=is_recorded)]
        offline = [
            str(TopicPartition(topic, number))
            for topic, partitions in sorted(topics.items())
            for number, facts in partitions.items()
            if facts.leader is None
        ]
        if jars.missing(jars.listed("kafka"), jars.jar_folder(settings)):
            # The tools would fetch them.
            return [judge_brokers(addresses, len(brokers), None, offline)]
        with ThreadPoolExecutor(2) as pool:
            release, clock = pool.submit(_release, settings), pool.submit(_clock, settings)
            return [judge_brokers(addresses, len(brokers), release.result(), offline), judge_clock(*clock.result())]

    def airflow(self) -> list[Diagnosis]:
        access = self.stack.airflow if self.stack else None
        if access is None:
            return [judge_airflow(None, [], 0)]
        try:
            unhealthy = AirflowApi.of(access).unhealthy()
        except TidemarkError as error:
            return [Diagnosis("Airflow", Health.PROBLEM, str(error), "run `tidemark up`")]
        return [judge_airflow(access.url, unhealthy, len(HEARTBEATS) + 1)]


def _release(settings: Settings) -> str | None:
    """Return the release of the brokers, such as 4.3; None if they do not tell this user."""
    return parse_release(_output("features", "describe", settings=settings))


def parse_release(said: str) -> str | None:
    """Read the release from what `kafka-features describe` prints; None if it is not there."""
    found = _RELEASE.search(said)
    return found[1] if found else None


def _clock(settings: Settings) -> tuple[int, int | None, int]:
    """Return the clock of the active controller, between two readings of this one. No client can simply ask for it."""
    began_ms = wall_clock_ms()
    said = _output("metadata-quorum", "describe", "--replication", settings=settings)
    return began_ms, parse_clock(tool_rows(said)), wall_clock_ms()


def parse_clock(rows: Sequence[Mapping[str, str]]) -> int | None:
    """Read the leader's row of `kafka-metadata-quorum describe --replication`: for itself it reports its own clock."""
    leader = next((row for row in rows if row.get("Status") == "Leader"), {})
    text = leader.get("LastCaughtUpTimestamp", "")
    return int(text) if text.isdecimal() else None


def _output(tool: str, *arguments: str, settings: Settings) -> str:
    try:
        _, said = kafka_tool(tool, *arguments, settings=settings, capture=True)
    except (TidemarkError, OSError):
        return ""
    return said

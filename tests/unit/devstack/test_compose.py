"""`docker-compose.yaml` says what the embedded stack says, and can be read by docker-compose."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark.database import facts_url
from tidemark.devstack import airflow_parts
from tidemark.devstack.broker_config import Node, server_properties
from tidemark.names import MAINTENANCE_POOL
from tidemark.settings import Settings, project_root

# Addresses, and what is sized for three brokers that share a small machine.
_ELSEWHERE = {
    "process.roles", "node.id", "controller.quorum.voters", "listeners", "advertised.listeners",
    "controller.listener.names", "listener.security.protocol.map", "log.dirs", "offsets.topic.num.partitions",
    "transaction.state.log.num.partitions", "broker.session.timeout.ms", "broker.heartbeat.interval.ms",
    "log.cleaner.dedupe.buffer.size", "num.network.threads", "num.io.threads", "controlled.shutdown.max.retries",
}  # fmt: skip


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load((project_root() / "docker-compose.yaml").read_text())["services"]
    return compose


def test_should_configure_its_brokers_like_three_embedded_ones(services: dict[str, Any]) -> None:
    node = Node(1, 9092, {1: 9093, 2: 9094, 3: 9095}, "id")
    wanted = {key: value for key, value in server_properties(node, Path("data")).items() if key not in _ELSEWHERE}
    assert len(wanted) >= 10
    for name in ("broker-1", "broker-2", "broker-3"):
        environment = services[name]["environment"]
        set_there = {
            key.removeprefix("KAFKA_").lower().replace("_", "."): str(value) for key, value in environment.items()
        }
        assert {key: set_there.get(key) for key in wanted} == wanted


def test_should_use_known_settings_and_a_separate_database_for_the_facts(services: dict[str, Any]) -> None:
    for name in ("scheduler", "triggerer", "api-server", "dag-processor"):
        environment = services[name]["environment"]
        ours = {key for key in environment if key.startswith("TIDEMARK_")}
        assert ours <= {f"TIDEMARK_{field.upper()}" for field in Settings.model_fields}
        url = facts_url(Settings.load(facts_url=environment["TIDEMARK_FACTS_URL"]))
        assert (url.get_backend_name(), url.host, url.password) == ("postgresql", "postgres", None)
        assert not environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(f"/{url.database}")
        assert "database" in services[name]["networks"]
    users = re.findall(r"//(\w+)@", environment["TIDEMARK_FACTS_URL"])
    assert users == [services["postgres"]["environment"]["POSTGRES_USER"]]


def test_should_give_its_airflow_the_maintenance_pool(services: dict[str, Any]) -> None:
    pool = f"airflow pools set {MAINTENANCE_POOL} {airflow_parts.MAINTENANCE_SLOTS} "
    assert pool in services["init"]["command"]
    parallelism = int(services["scheduler"]["environment"]["AIRFLOW__CORE__PARALLELISM"])
    assert parallelism > airflow_parts.MAINTENANCE_SLOTS


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on this machine")
def test_should_be_accepted_by_docker_compose() -> None:
    done = subprocess.run(
        ["docker-compose", "-f", str(project_root() / "docker-compose.yaml"), "config", "-q"],
        cwd=project_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""`docker-compose.yaml` says what the embedded stack says, and can be read by docker-compose."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from spark_jobs.cluster import cluster_conf
from tests.support.prometheus import RULES, tool

from tidemark.database import facts_url
from tidemark.devstack import airflow_parts
from tidemark.devstack.broker_config import Node, server_properties
from tidemark.kafka.jars import listed
from tidemark.names import MAINTENANCE_POOL
from tidemark.settings import Settings, project_root

COMPOSE = project_root() / "compose"
_DASHBOARD = "/var/lib/grafana/dashboards/tidemark.json"

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


def test_should_give_its_airflow_the_slots_of_the_embedded_one(services: dict[str, Any]) -> None:
    pool = f"airflow pools set {MAINTENANCE_POOL} {airflow_parts.MAINTENANCE_SLOTS} "
    assert pool in services["init"]["command"]
    parallelism = int(services["scheduler"]["environment"]["AIRFLOW__CORE__PARALLELISM"])
    assert parallelism == airflow_parts.PARALLELISM


def test_every_page_should_name_the_file_in_which_airflow_keeps_passwords(
    services: dict[str, Any], tmp_path: Path
) -> None:
    code = (
        "from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager;"
        "print(SimpleAuthManager.get_generated_password_file())"
    )
    environment = services["api-server"]["environment"]
    users = {name: value for name, value in environment.items() if name.startswith("AIRFLOW__CORE__SIMPLE_AUTH")}
    # Airflow creates its home, so that is a folder of the test.
    own = {**os.environ, **users, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    file = Path(environment["AIRFLOW_HOME"]) / Path(done.stdout.splitlines()[-1]).relative_to(tmp_path)
    # It must outlast the container.
    assert file.is_relative_to(services["api-server"]["volumes"][0].removeprefix("var:"))
    for page in ("docker-compose.yaml", "docs/airflow.md", "docs/kubernetes.md"):
        assert str(file) in (project_root() / page).read_text(), page


def _in(folder: Path, command: list[str]) -> list[str]:
    """The command as a container runs it, but with the volumes in `folder`."""
    return [part.replace("$$", "$").replace("/var/", f"{folder}/") for part in command]


def test_should_let_its_drivers_start_with_the_secret_of_the_cluster(services: dict[str, Any], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    for folder in (tools, tmp_path / "spark", tmp_path / "tidemark"):
        folder.mkdir()
    for name in ("airflow", "python"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}{os.pathsep}{os.defpath}"}

    def said(command: list[str]) -> str:
        return subprocess.run(
            _in(tmp_path, command), env=environment, capture_output=True, text=True, check=True
        ).stdout

    wanted = {"spark-master": "_SPARK_AUTH_SECRET", "spark-worker": "_SPARK_AUTH_SECRET"}
    wanted["scheduler"] = "TIDEMARK_SPARK_AUTHENTICATE_SECRET"
    secrets = set()
    # A second start keeps the secret, which the workers that run have.
    for _ in range(2):
        said(shlex.split(services["init"]["command"]))
        for name, variable in wanted.items():
            assert _mounts(services[name])["/var/spark"] == _mounts(services["init"])["/var/spark"]
            secrets.add(said([*services[name]["entrypoint"], "printenv", variable]).strip())
    (secret,) = secrets
    assert len(secret) == 64
    given = services["scheduler"]["environment"]
    ours = {name: value for name, value in given.items() if name.startswith("TIDEMARK_SPARK_")}
    settings = Settings.load(
        **{name.removeprefix("TIDEMARK_").lower(): value for name, value in ours.items()},
        spark_authenticate_secret=secret,
    )
    conf = cluster_conf(settings)
    # Elsewhere this name is unknown, so that the driver is reached in this network.
    assert services["scheduler"]["networks"]["streams"]["aliases"] == [conf["spark.driver.host"]]
    for name in ("spark-master", "spark-worker"):
        options = services[name]["environment"]["SPARK_DAEMON_JAVA_OPTS"].split()
        shared = {key: conf[key] for key in ("spark.authenticate", "spark.network.crypto.enabled")}
        assert set(options) == {f"-D{key}={value}" for key, value in shared.items()}


def test_should_have_room_on_its_worker_for_every_stream_of_the_repository(services: dict[str, Any]) -> None:
    streams = [file for file in (project_root() / "include" / "topologies").glob("*.py") if file.stem != "__init__"]
    cores, memory = re.findall(r"--(?:cores|memory) (\d+)", services["spark-worker"]["command"])
    needed = int(services["scheduler"]["environment"]["TIDEMARK_SPARK_CORES_MAX"]) * len(streams)
    assert streams
    assert int(cores) >= needed
    assert int(memory) >= len(streams)


def _mounts(service: dict[str, Any]) -> dict[str, str]:
    """The source of each mount by its place in the container."""
    return {place: source for source, place, *_ in (mount.split(":") for mount in service["volumes"])}


def test_should_start_what_shows_metrics_only_when_asked(services: dict[str, Any]) -> None:
    shown = {"metrics-token", "prometheus", "grafana"}
    assert {name for name, service in services.items() if service.get("profiles") == ["metrics"]} == shown
    for name in services.keys() - shown:
        assert not shown & set(services[name].get("depends_on", ()))


def test_should_name_every_image_with_its_version_and_no_registry(services: dict[str, Any]) -> None:
    for service in services.values():
        image = service["image"]
        assert image == "tidemark" or re.fullmatch(r"([a-z]+/)?[a-z]+:v?\d+(\.\d+)+", image), image


def test_should_have_the_kafka_of_the_jars(services: dict[str, Any]) -> None:
    (version,) = {jar.version for jar in listed("kafka") if jar.artifact == "kafka-clients"}
    images = {service["image"] for service in services.values() if "kafka" in service["image"]}
    assert images == {f"apache/kafka:{version}"}


def test_should_give_the_dashboard_a_data_source_of_the_kind_that_it_asks_for(services: dict[str, Any]) -> None:
    dashboard = json.loads((project_root() / _mounts(services["grafana"])[_DASHBOARD]).read_text())
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    asked = [panel["datasource"] for panel in dashboard["panels"] if panel["type"] != "row"]
    asked += [variable["datasource"] for variable in variables.values() if variable["type"] == "query"]
    assert {(each["type"], each["uid"]) for each in asked} == {("prometheus", "${datasource}")}
    assert variables["datasource"]["type"] == "datasource"
    provided = yaml.safe_load((COMPOSE / "grafana_datasource.yaml").read_text())["datasources"]
    assert [source["type"] for source in provided if source["isDefault"]] == [variables["datasource"]["query"]]


def test_should_give_prometheus_and_grafana_the_files_of_the_repository(services: dict[str, Any]) -> None:
    prometheus, grafana = _mounts(services["prometheus"]), _mounts(services["grafana"])
    for source in (*prometheus.values(), *grafana.values()):
        assert not source.startswith(".") or (project_root() / source).is_file(), source
    assert (project_root() / prometheus["/etc/prometheus/alert_rules.yaml"]).samefile(RULES)
    (file,) = (option.split("=")[1] for option in services["prometheus"]["command"] if "config.file" in option)
    config = yaml.safe_load((project_root() / prometheus[file]).read_text())
    assert config["rule_files"] == ["/etc/prometheus/alert_rules.yaml"]
    dashboards = yaml.safe_load((project_root() / "compose" / "grafana_dashboards.yaml").read_text())
    (folder,) = (provider["options"]["path"] for provider in dashboards["providers"])
    dashboard = json.loads((project_root() / grafana[f"{folder}/tidemark.json"]).read_text())
    assert dashboard["title"] == "Tidemark"
    datasource = yaml.safe_load((project_root() / "compose" / "grafana_datasource.yaml").read_text())
    assert [source["url"] for source in datasource["datasources"]] == ["http://scheduler:9090"]
    # It is where Prometheus shares the network.
    assert services["prometheus"]["network_mode"] == "service:scheduler"
    assert set(services["grafana"]["networks"]) & services["scheduler"]["networks"].keys()


def test_should_give_prometheus_the_tokens_that_other_services_write(services: dict[str, Any]) -> None:
    written = {
        text
        for name in ("init", "metrics-token")
        for text in re.findall(r"scrape_tokens \w+ (/var/tokens/\w+)", services[name]["command"])
    }
    assert set(re.findall(r"credentials_file: ([\w/]+)", (COMPOSE / "prometheus.yaml").read_text())) == written
    assert len(written) == 2
    for name in ("init", "metrics-token", "prometheus"):
        assert _mounts(services[name])["/var/tokens"] == "tokens"
    # Everything else that is secret stays out of its reach.
    assert set(_mounts(services["prometheus"]).values()) & {"var"} == set()


def test_should_configure_prometheus_as_the_documentation_does() -> None:
    text = (project_root() / "docs" / "metrics.md").read_text()
    documented = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])["scrape_configs"]
    ours = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["scrape_configs"]

    def without_addresses(job: dict[str, Any]) -> dict[str, Any]:
        same = {name: job.get(name) for name in ("job_name", "honor_labels", "metrics_path")}
        logins = [sd["authorization"]["type"] for sd in job.get("http_sd_configs", ())]
        return same | {"discovery": logins, "static": "static_configs" in job}

    assert [without_addresses(job) for job in ours] == [without_addresses(job) for job in documented]


def test_should_have_a_configuration_that_prometheus_accepts() -> None:
    command = [tool("promtool"), "check", "config", "--syntax-only", str(COMPOSE / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on this machine")
def test_should_be_accepted_by_docker_compose() -> None:
    done = subprocess.run(
        ["docker-compose", "-f", str(project_root() / "docker-compose.yaml"), "--profile", "metrics", "config", "-q"],
        cwd=project_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

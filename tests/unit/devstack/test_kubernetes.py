"""`docs/kubernetes.yaml` says what `docker-compose.yaml` says, and its objects fit together."""

from __future__ import annotations

import base64
import re
import subprocess
from typing import Any

import pytest
import yaml
from spark_jobs.cluster import cluster_conf
from sqlalchemy.engine import make_url

from tidemark.settings import Settings, project_root

_DOCS = project_root() / "docs"
_ELSEWHERE = {
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "TIDEMARK_BOOTSTRAP_SERVERS", "TIDEMARK_SPARK_DRIVER_HOST",
    "TIDEMARK_FACTS_URL", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW_METADATA_DATABASE_URL",
    "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY",
}  # fmt: skip
"""Addresses and secrets, which differ."""

Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def objects() -> Objects:
    found = list(yaml.safe_load_all((_DOCS / "kubernetes.yaml").read_text()))
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(by_name) == len(found)
    return by_name


def _pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """The templates of pods by the names of their owners."""
    return {name: each["spec"]["template"] for (_, name), each in objects.items() if "template" in each.get("spec", {})}


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def _references(objects: Objects) -> list[dict[str, str]]:
    return [
        variable["valueFrom"]["secretKeyRef"]
        for pod in _pods(objects).values()
        for container in _containers(pod)
        for variable in container.get("env", ())
        if "secretKeyRef" in variable.get("valueFrom", {})
    ]


def test_should_give_airflow_the_settings_of_docker_compose(objects: Objects) -> None:
    services = yaml.safe_load((project_root() / "docker-compose.yaml").read_text())["services"]
    composed = services["scheduler"]["environment"]
    wanted = {name.removesuffix("_CMD"): value for name, value in composed.items()}
    settings = objects["ConfigMap", "tidemark"]["data"]
    for container in _containers(_pods(objects)["airflow"]):
        assert container["envFrom"] == [{"configMapRef": {"name": "tidemark"}}]
        given = {variable["name"]: None for variable in container["env"]} | settings
        assert wanted.keys() == given.keys() - {"TIDEMARK_SPARK_AUTHENTICATE_SECRET"}
        differing = {name for name, value in wanted.items() if given[name] != str(value)}
        assert differing <= _ELSEWHERE
        assert {name for name in given if name.startswith("TIDEMARK_")} <= {
            f"TIDEMARK_{field.upper()}" for field in Settings.model_fields
        }
    commands = {each["name"]: " ".join(each["command"]) for each in _containers(_pods(objects)["airflow"])}
    for name in ("scheduler", "triggerer", "dag-processor", "api-server"):
        assert commands[name] == services[name]["command"]
    for step in re.findall(r"airflow (?:db migrate|pools set [^;]+)", services["init"]["command"]):
        assert step.strip("'") in commands["migrate"]


def test_should_keep_the_processes_and_the_name_of_its_machine(objects: Objects) -> None:
    airflow = objects["StatefulSet", "airflow"]["spec"]
    assert (airflow["replicas"], airflow["template"]["spec"]["shareProcessNamespace"]) == (1, True)
    (claim,) = airflow["volumeClaimTemplates"]
    folder = objects["ConfigMap", "tidemark"]["data"]["TIDEMARK_VAR_DIR"]
    for container in _containers(airflow["template"]):
        assert container["volumeMounts"] == [{"name": claim["metadata"]["name"], "mountPath": folder}]


def test_should_let_no_service_set_variables(objects: Objects) -> None:
    for name, pod in _pods(objects).items():
        assert pod["spec"]["enableServiceLinks"] is False, name
        assert pod["spec"]["automountServiceAccountToken"] is False, name


def test_should_lead_each_service_to_a_port_of_a_pod(objects: Objects) -> None:
    pods = {pod["metadata"]["labels"]["app"]: pod for pod in _pods(objects).values()}
    services = [each for (kind, _), each in objects.items() if kind == "Service"]
    assert len(services) == 2
    for service in services:
        (port,) = service["spec"]["ports"]
        ports = {
            each["name"]: each["containerPort"]
            for container in _containers(pods[service["spec"]["selector"]["app"]])
            for each in container.get("ports", ())
        }
        assert ports[port["targetPort"]] == port["port"]
    for (_, name), each in objects.items():
        if "template" in each.get("spec", {}):
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"], name


def test_should_have_a_cluster_that_its_drivers_can_use(objects: Objects) -> None:
    pods, settings = _pods(objects), objects["ConfigMap", "tidemark"]["data"]
    address = settings["TIDEMARK_SPARK_MASTER"]
    master, worker = pods["spark-master"]["spec"], pods["spark-worker"]["spec"]
    host = master["hostname"]
    assert address == f"spark://{host}:{master['containers'][0]['ports'][0]['containerPort']}"
    assert master["containers"][0]["command"][-2:] == ["--host", host]
    assert objects["Service", host]["spec"]["clusterIP"] == "None"
    assert worker["containers"][0]["command"][-1] == address
    conf = cluster_conf(
        Settings.load(spark_master=address, spark_driver_host="10.0.0.1", spark_authenticate_secret="s")
    )
    (secret,) = (
        variable["valueFrom"]
        for variable in pods["airflow"]["spec"]["containers"][0]["env"]
        if variable["name"] == "TIDEMARK_SPARK_AUTHENTICATE_SECRET"
    )
    for pod in (master, worker):
        environment = {variable["name"]: variable for variable in pod["containers"][0]["env"]}
        shared = {key: conf[key] for key in ("spark.authenticate", "spark.network.crypto.enabled")}
        options = environment["SPARK_DAEMON_JAVA_OPTS"]["value"].split()
        assert set(options) == {f"-D{key}={value}" for key, value in shared.items()}
        assert environment["_SPARK_AUTH_SECRET"]["valueFrom"] == secret


def test_should_need_the_secrets_that_the_page_makes(objects: Objects, tmp_path: Any) -> None:
    page = (_DOCS / "kubernetes.md").read_text()
    made = re.search(r"^ {8}(\(umask.*?secret\.env\))$", page, re.MULTILINE | re.DOTALL)
    assert made is not None
    command = re.sub(r"^ {8}", "", made[1], flags=re.MULTILINE)
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, check=True, timeout=60)
    file = tmp_path / "secret.env"
    assert file.stat().st_mode & 0o077 == 0
    secrets = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert len(base64.urlsafe_b64decode(secrets["fernet-key"])) == 32
    assert all(len(secrets[name]) == 64 for name in ("jwt-secret", "api-secret", "spark-secret"))
    assert make_url(secrets["facts-url"]).database != make_url(secrets["airflow-url"]).database
    references = _references(objects)
    assert {each["key"] for each in references} == secrets.keys()
    assert {each["name"] for each in references} == {"tidemark"}

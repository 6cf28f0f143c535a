"""An application runs with the printed ACLs, and names the missing one when any of them is removed."""

from __future__ import annotations

import json

from tests.support.counting import counting
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.kafka.acls import least_acls
from tidemark.topology.builder import Topology


def rejoined() -> Topology:
    topology = Topology("rejoined")
    clicks = topology.stream("clicks", schema="page STRING, who STRING", key="page")
    clicks.group_by("who").count(name="n", store="n").to("per-user")
    return topology


def test_should_allow_writing_reading_and_purging_a_repartition_topic() -> None:
    found = {(acl.name, acl.operation) for acl in least_acls(rejoined().plan(), 1)}
    (topic,) = rejoined().plan().repartition_topics
    assert {o for name, o in found if name == topic} == {"Create", "DescribeConfigs", "Read", "Write", "Delete"}


def test_should_list_a_transactional_id_for_each_instance() -> None:
    names = [acl.name for acl in least_acls(counting("app").plan(), 3) if acl.resource == "transactional-id"]
    assert names == ["app-0", "app-1", "app-2"]


def test_should_print_commands_or_json() -> None:
    cli, name = build(), "patient_monitoring"
    said = CliRunner().invoke(cli, ["acls", name, "--principal", "User:ward 7", "--instances", "2"])
    assert said.exit_code == 0
    assert "--allow-principal 'User:ward 7' --operation Read --group patient-monitoring  # the" in said.output
    assert "--transactional-id patient-monitoring-1" in said.output
    summary = json.loads(CliRunner().invoke(cli, ["acls", name, "--principal", "User:a", "--json"]).output)
    assert {"principal": "User:a", "resource": "group", "name": "patient-monitoring", "operation": "Read"}.items() <= (
        next(entry for entry in summary if entry["resource"] == "group").items()
    )


def test_should_refuse_an_invalid_principal() -> None:
    said = CliRunner().invoke(build(), ["acls", "patient_monitoring", "--principal", "streams"])
    assert "write it as User:streams" in str(said.exception)

"""Commands work on a stopped application with the ACLs of `tidemark acls --operator`, and name one that is missing.

A super user runs the application's instances and writes its input, so only the commands need these ACLs.
"""

from __future__ import annotations

from dataclasses import replace

from tests.support.changes import version_one
from tests.support.operator_acls import version_two
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.kafka.operator_acls import Command, OperatorTopics, operator_acls
from tidemark.registry.description import describe_state, with_generations
from tidemark.registry.operator_rights import operator_topics
from tidemark.topology.builder import Topology


def names_of(topics: OperatorTopics, *commands: Command) -> set[tuple[str, str]]:
    return {(acl.name, acl.operation) for acl in operator_acls(topics, commands)}


def test_should_print_each_permission_once_and_omit_implied_ones() -> None:
    found = operator_acls(operator_topics(version_one("app").plan(), None, (), 2), Command)
    assert len({(acl.resource, acl.name, acl.operation) for acl in found}) == len(found)
    of_commits = {acl.operation for acl in found if acl.name == "app-commits"}
    assert of_commits == {"Read", "Write", "Alter", "AlterConfigs"}
    assert all(acl.why for acl in found)
    ids = [acl.name for acl in found if acl.resource == "transactional-id"]
    assert ids == ["app-0", "app-1", "app-dlq-replay"]


def test_should_need_no_write_permission_for_commands_that_only_read() -> None:
    topics = operator_topics(version_one("app").plan(), None, (), 1)
    reading = (Command.RESTORE, Command.FROM_SOURCE, Command.SHOW_SETTINGS, Command.LIST_LETTERS)
    found = {operation for _, operation in names_of(topics, *reading)}
    assert found == {"Read", "Describe", "DescribeConfigs"}


def test_should_list_the_topics_that_the_next_change_creates() -> None:
    plan = version_one("app").plan()
    fresh = operator_topics(plan, None, (), 1)
    assert fresh.used.changelogs == {"app-n-changelog"}
    assert fresh.created.changelogs == fresh.rescaled.changelogs == {"app-n-changelog-1"}
    assert fresh.rescaled.repartitions == {"app-source-app-in-1-repartition"}
    held = describe_state(with_generations(plan, {"n": 2}), {"app-in": 2})
    killed = ["app-n-changelog-2", "app-n-changelog-3", "app-source-app-in-1-repartition"]
    topics = operator_topics(plan, replace(held, routing=1), killed, 1)
    assert topics.used.changelogs == {"app-n-changelog-2"}
    assert topics.used.repartitions == {"app-source-app-in-1-repartition"}
    assert topics.created.changelogs == {"app-n-changelog-4"}, "what a killed change has made is passed over"
    assert topics.rescaled.repartitions == {"app-source-app-in-2-repartition"}


def test_should_let_an_upgrade_read_old_changelogs_and_create_new_ones() -> None:
    old = describe_state(version_one("app").plan(), {"app-in": 2})
    topics = operator_topics(version_two("app").plan(), old, ["app-n-changelog"], 1)
    assert topics.used.changelogs == {"app-n-changelog"}
    assert topics.created.changelogs == {"app-total-changelog"}
    found = names_of(topics, Command.UPGRADE)
    assert ("app-n-changelog", "Write") not in found
    assert {("app-n-changelog", "Read"), ("app-total-changelog", "Create"), ("app-in", "Read")} <= found


def test_should_let_an_upgrade_read_the_settings_of_a_topic_that_becomes_the_changelog_of_its_table() -> None:
    old, new = (Topology("app", version=str(n), optimised=n == 2) for n in (1, 2))
    for topology in (old, new):
        topology.table("names", schema="name STRING", store="names")
    topics = operator_topics(new.plan(), describe_state(old.plan(), {"names": 2}), (), 1)
    assert ("names", "DescribeConfigs") in names_of(topics, Command.UPGRADE)
    assert ("names", "DescribeConfigs") not in names_of(topics, Command.RESET)


def test_should_print_the_operators_permissions_separately_from_others() -> None:
    ask = ["acls", "patient_monitoring", "--principal", "User:oncall", "--operator"]
    said = CliRunner().invoke(build(), ask)
    assert said.exit_code == 0
    assert "--operation AlterConfigs --topic patient-monitoring-commits  # `topics run` sets" in said.output
    assert "--transactional-id patient-monitoring-dlq-replay" in said.output
    assert CliRunner().invoke(build(), [*ask, "--audits"]).exit_code == 2

"""`tidemark acls`: the ACLs that the user who runs an application needs on secured brokers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient

from tidemark.errors import InvalidSettings
from tidemark.kafka.acls import least_acls
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command, operator_acls
from tidemark.kafka.topics import partition_counts
from tidemark.registry.operator_rights import operator_topics
from tidemark.registry.reader import named, recorded
from tidemark.settings import Settings
from tidemark.topology_loader import load


def acls(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    principal: Annotated[str, typer.Option(help="the Kafka principal of the instances, such as User:streams")],
    instances: Annotated[int, typer.Option(min=1, help="the largest number of instances")] = 1,
    audits: Annotated[bool, typer.Option("--audits", help="include what audits, drills and checks need")] = False,
    running: Annotated[
        bool,
        typer.Option("--running", help="ask the brokers for the topic names of a rescaled or upgraded application"),
    ] = False,
    operator: Annotated[
        bool,
        typer.Option("--operator", help="print the ACLs of the commands that change the stopped application instead"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for a program")] = False,
) -> None:
    """Print the smallest set of ACLs for an application's instances, as calls of `kafka-acls.sh`; changes nothing.

    With --operator, print those for a person who uses `restore`, `rewind`, `reset`, `rescale`, `upgrade`, `repair`,
    `topics` and `dlq`.
    """
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise InvalidSettings(f"--principal {principal} is not a principal of Kafka; write it as User:streams")
    if operator and audits:
        raise typer.BadParameter(
            "these are the rights of different users; print them one by one", param_hint="--operator"
        )
    settings, plan = Settings.load(), load(topology).plan()
    description, existing = None, {}
    if running:
        admin = AdminClient(librdkafka_config(settings))
        existing = partition_counts(admin, settings)
        description = recorded(settings, admin, plan, existing)
    if operator:
        found = operator_acls(operator_topics(plan, description, existing, instances), Command)
    else:
        found = least_acls(named(plan, description), instances, audits=audits, queries=settings.query_port >= 0)
    if as_json:
        print(json.dumps([{"principal": principal, **asdict(acl)} for acl in found], indent=1))
        return
    for acl in found:
        print(f"{acl.command(principal, settings.bootstrap_servers)}  # {acl.why}")

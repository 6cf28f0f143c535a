"""`tidemark acls`: what a secured broker must allow the user by whom an application runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient

from tidemark.broker.acls import least_acls
from tidemark.broker.clients import librdkafka_config
from tidemark.change.recorded import named_plan
from tidemark.errors import InvalidSettings
from tidemark.settings import Settings
from tidemark.topology.load import load


def acls(
    topology: Annotated[str, typer.Argument(help="module in include/topologies")],
    principal: Annotated[str, typer.Option(help="whom the instances run as, such as User:streams")],
    instances: Annotated[int, typer.Option(min=1, help="how many instances there may be")] = 1,
    audits: Annotated[bool, typer.Option("--audits", help="with what audits, drills and checks read besides")] = False,
    running: Annotated[
        bool, typer.Option("--running", help="ask the brokers how a rescaled or upgraded application names its topics")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for a program")] = False,
) -> None:
    """Print the least ACLs of an application's instances as calls of `kafka-acls.sh`; changes nothing."""
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise InvalidSettings(f"--principal {principal} is no principal of Kafka; write it as User:streams")
    settings, plan = Settings.load(), load(topology).plan()
    if running:
        plan = named_plan(plan, settings, AdminClient(librdkafka_config(settings)))
    found = least_acls(plan, instances, audits=audits)
    if as_json:
        print(json.dumps([{"principal": principal, **asdict(acl)} for acl in found], indent=1))
        return
    for acl in found:
        print(f"{acl.command(principal, settings.bootstrap_servers)}  # {acl.why}")

"""The ACLs that the user who runs an application, or its operator, needs on secured brokers."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tidemark.cli.output import Output, Verbatim, as_json
from tidemark.errors import InvalidSettings
from tidemark.kafka.acls import least_acls
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command, operator_acls
from tidemark.kafka.topics import partition_counts
from tidemark.registry.operator_rights import operator_topics
from tidemark.registry.reader import named, recorded
from tidemark.settings import Settings
from tidemark.topology_loader import load


def show_acls(
    topology: str, principal: str, instances: int, output: Output, *, audits: bool, running: bool, operator: bool
) -> None:
    """Show the ACLs of the instances, or of the `operator`. Asks the brokers only if `running` is set."""
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise InvalidSettings(f"--principal {principal} is not a principal of Kafka; write it as User:streams")
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
    output.show(
        [{"principal": principal, **as_json(acl)} for acl in found],
        *(Verbatim(f"{acl.command(principal, settings.bootstrap_servers)}  # {acl.why}") for acl in found),
    )

"""Checks that the user of a command has the rights that it needs, before it reads or changes anything."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from tidemark.kafka.acls import verify_granted
from tidemark.kafka.operator_acls import (
    OPERATOR_GRANT,
    WITHOUT_DESCRIPTION,
    Command,
    OperatorTopics,
    TopicNames,
    operator_acls,
)
from tidemark.kafka.topics import changelog_topics, partition_counts
from tidemark.registry.description import Description, with_generations
from tidemark.registry.generations import next_generation
from tidemark.registry.reader import named, recorded
from tidemark.registry.routing import next_routing, routed
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


def operator_topics(
    plan: TopologyPlan, found: Description | None, existing: Collection[str], instances: int
) -> OperatorTopics:
    """Return the topics of an application before and after a change. Pure.

    `plan` is that of the topology module. If it has the current names already, no topics after a change are returned. `found`
    is the recorded description; None means an application that was never changed. `existing` are all known topics of the
    cluster.
    """
    used = _used(plan, found)
    if plan.routed:
        return OperatorTopics(plan.application_id, used, instances)
    app = plan.application_id
    held = {spec.name: 0 if found is None else found.last_generation(spec.name) for spec in plan.stores}
    numbers = {name: next_generation(app, name, existing, last) for name, last in held.items()}
    created = with_generations(plan, numbers)
    routing = 0 if found is None else found.routing
    rescaled = routed(created, next_routing(app, plan.repartition_topics, existing, routing))
    created = routed(created, routing) if routing else created
    return OperatorTopics(
        app, used, instances, TopicNames.of(created).without(used), TopicNames.of(rescaled).without(used)
    )


def _used(plan: TopologyPlan, found: Description | None) -> TopicNames:
    own = TopicNames.of(plan if found is None else named(plan, found))
    if found is None:
        return own
    app, internal = plan.application_id, {*found.internal, *(found.user_topics if found.routing else ())}
    specs = [store.spec for store in found.stores.values()]
    return TopicNames(
        frozenset(found.user_topics),
        own.sinks,
        frozenset(changelog_topics(app, specs)),
        frozenset(found.routed_topic(topic) for topic in internal),
        own.tables,
    )


def verify_operator(command: Command, plan: TopologyPlan, settings: Settings, admin: AdminClient) -> None:
    """Raise `PreflightFailed` if the user lacks rights to topics or to the group that a command needs. Blocks.

    Rights to the topics that the command creates are checked when they exist. Raises `OutcomeUnknown` if no broker answers.
    """
    if command in WITHOUT_DESCRIPTION:
        _verify(command, plan, None, settings, admin)
    else:
        verified_description(command, plan, settings, admin)


def verified_description(
    command: Command, plan: TopologyPlan, settings: Settings, admin: AdminClient
) -> Description | None:
    """Verify the rights as `verify_operator` does, and return the description that says which topics they are about. Blocks.

    It is what `recorded` returns and raises: None means that the application has never committed.
    """
    # These first: the other names are in the description, and a topic that the user may not see looks like a lost one.
    own = operator_acls(OperatorTopics(plan.application_id, TopicNames(), 0), [command])
    verify_granted(own, plan.application_id, settings, admin, OPERATOR_GRANT)
    found = recorded(settings, admin, plan, partition_counts(admin, settings))
    _verify(command, plan, found, settings, admin)
    return found


def _verify(
    command: Command, plan: TopologyPlan, found: Description | None, settings: Settings, admin: AdminClient
) -> None:
    app = plan.application_id
    topics = OperatorTopics(app, _used(plan, found), 0)
    verify_granted(operator_acls(topics, [command]), app, settings, admin, OPERATOR_GRANT)

"""The smallest set of ACLs that the user who runs an application's instances needs on the brokers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.kafka.attempts import ask_controller
from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.kafka.topics import changelog_topics, user_topics
from tidemark.names import (
    commits_topic,
    dlq_topic,
    endpoints_topic,
    events_topic,
    topology_topic,
    transactional_id,
)
from tidemark.settings import Settings
from tidemark.topology.plan import Guarantee, TopologyPlan

CLUSTER, _CLUSTER_NAME = "cluster", "kafka-cluster"
"""The only resource of type cluster, and the name that brokers give it."""


@dataclass(frozen=True, order=True)
class Acl:
    """One operation on one resource, whose name is literal. `why` is an explanation for people."""

    resource: str
    name: str
    operation: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"

    def command(self, principal: str, bootstrap: str) -> str:
        """Return the command of Kafka's own tool that grants this ACL to `principal`."""
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        resource = ["--cluster"] if self.resource == CLUSTER else [f"--{self.resource}", self.name]
        return shlex.join([*words, "--operation", self.operation, *resource])


def least_acls(plan: TopologyPlan, instances: int, *, audits: bool = False, queries: bool = False) -> list[Acl]:
    """Return all ACLs that this number of instances needs, sorted by resource. Read and Write include Describe.

    With `queries`, also those of instances and standbys that answer queries.
    With `audits`, also those that audits, drills and the checks of retention, compaction, durability and lag need.
    """
    app = plan.application_id
    repartition = set(plan.repartition_topics)
    sources = {topic for s in plan.subtopologies for topic in s.source_topics} - repartition
    sinks = {topic for s in plan.subtopologies for topic in s.sink_topics} - repartition
    configs = {topic for topic in user_topics(plan) if topic in sinks or plan.tolerated_broker_failures}
    configs |= {store.source_topic for store in plan.stores if store.source_topic is not None}
    changelogs = changelog_topics(app, plan.stores)
    found = [
        *_each(sources, "Read", "a source"),
        *_each(sinks, "Write", "a sink"),
        *_each(configs, "DescribeConfigs", "its settings are verified at the start"),
        *_internal(changelogs, "a changelog", "Read", "Write"),
        *_internal(repartition, "a repartition topic", "Read", "Write", "Delete"),
        *_internal([commits_topic(app)], "commit records", "Read", "Write", "Alter"),
        *_internal([dlq_topic(app)], "dead letters", "Write", "Alter"),
        *_internal([events_topic(app)], "events", "Write"),
        *_internal([topology_topic(app)], "the description of the state", "Read", "Write"),
        Acl("group", app, "Read", "the instances' group, which holds the committed offsets"),
    ]
    if queries:
        for operation in ("Create", "Read", "Write"):
            found.append(Acl("topic", endpoints_topic(app), operation, "where queries are answered"))
    # The idempotent producer of at_least_once has no transactional id.
    for number in range(instances if plan.guarantee is Guarantee.EXACTLY_ONCE else 0):
        name = transactional_id(app, number)
        found += [Acl("transactional-id", name, "Write", f"the transactions of instance {number}")]
    if audits:
        found += [
            *_each([*sinks, dlq_topic(app), events_topic(app)], "Read", "read by audits"),
            *_each(sources, "DescribeConfigs", "judged by the durability check"),
            Acl(CLUSTER, _CLUSTER_NAME, "DescribeConfigs", "brokers' settings, judged by the durability check"),
            Acl(CLUSTER, _CLUSTER_NAME, "Describe", "sizes of topics on brokers' disks, shown by the compaction check"),
        ]
    return sorted(set(found))


def _internal(topics: Collection[str], why: str, *operations: str) -> Iterator[Acl]:
    for operation in ("Create", "DescribeConfigs", *operations):
        yield from _each(topics, operation, why)


def _each(topics: Collection[str], operation: str, why: str) -> Iterator[Acl]:
    return (Acl("topic", topic, operation, why) for topic in topics)


_INSTANCE_GRANT = "`tidemark acls NAME --principal User:…`"
_DENIED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
# A new cluster needs time to create the group's coordinator; a member that joins the group waits for it, too.
_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND, KafkaError._TIMED_OUT}
# Can be allowed although Describe is denied: all other operations imply Describe.
_INDEPENDENT = frozenset({"DESCRIBECONFIGS", "ALTERCONFIGS"})


def verify_allowed(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> None:
    """Ask the brokers what this user may do, and raise `PreflightFailed` for the operations that an instance lacks.

    Blocks and raises like `verify_granted`.
    """
    verify_granted(least_acls(plan, 0), plan.application_id, settings, admin, _INSTANCE_GRANT)


def verify_granted(wanted: Collection[Acl], group: str, settings: Settings, admin: AdminClient, grant: str) -> None:
    """Ask the brokers what this user may do, and raise `PreflightFailed` for the operations that are missing.

    `group` is the application's; `grant` is the command that prints the ACLs, for the message. Blocks for two round trips.
    Topics that do not exist yet are skipped if the user may see that. Brokers cannot be asked about transactional ids:
    `init_transactions` fails if they are not allowed. Raises `OutcomeUnknown` if no broker answers.
    """
    # Whether topics may be created is known only when one is created.
    needed = [acl for acl in wanted if acl.operation != "Create" and acl.resource in ("topic", "group")]
    asked = {acl.name for acl in needed if acl.resource == "topic"}
    timeout_s = settings.broker_timeout_ms / 1000

    def of_topics(seconds: float) -> dict[tuple[str, str], frozenset[str] | None]:
        topics = admin.describe_topics(
            TopicCollection(sorted(asked)), include_authorized_operations=True, request_timeout=seconds
        )
        return {("topic", name): _allowed(future.result) for name, future in topics.items()}

    try:
        allowed = ask_controller(admin, timeout_s, of_topics)
    except KafkaException as error:
        reason = error.args[0].str()
        raise OutcomeUnknown(
            f"failed to ask {settings.bootstrap_servers} for this user's permissions: {reason}; try again"
        ) from error

    def of_group() -> frozenset[str] | None:
        return _allowed(lambda: describe_group(settings, admin, group, include_authorized_operations=True))

    if any(acl.resource == "group" for acl in needed):
        allowed[("group", group)] = retry_until_stable(of_group, group, timeout_s)
    lacking = [acl for acl in needed if not _holds(acl, allowed[(acl.resource, acl.name)])]
    if lacking:
        raise PreflightFailed(
            f"this user lacks permissions: {', '.join(map(str, lacking))}; grant the ACLs that {grant} prints for {group}"
        )


def _holds(acl: Acl, allowed: frozenset[str] | None) -> bool:
    return allowed is None or acl.operation.upper() in allowed


def _allowed(describe: Callable[[], Any]) -> frozenset[str] | None:
    """Return the names of the allowed operations, without underscores; None if nothing is known of the resource."""
    try:
        operations = describe().authorized_operations
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        if reason.code() in _DENIED:
            return _INDEPENDENT
        if reason.code() in _UNKNOWN:
            return None
        raise
    return None if operations is None else frozenset(operation.name.replace("_", "") for operation in operations)

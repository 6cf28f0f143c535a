"""The topics of an application: which ones it needs, how internal ones are created, how existing ones are verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from tidemark.errors import PreflightFailed, TidemarkError
from tidemark.kafka.admin_errors import failed_request
from tidemark.kafka.attempts import find_controller
from tidemark.kafka.cluster import TopicFacts, describe_known_topics, describe_topics, topic_configs, wait_until_led
from tidemark.kafka.topic_config import (
    changelog_policy,
    commits_config,
    dlq_config,
    endpoints_config,
    events_config,
    repartition_config,
    topology_config,
)
from tidemark.names import (
    TaskId,
    TopicPartition,
    changelog_topic,
    commits_topic,
    dlq_topic,
    endpoints_topic,
    events_topic,
    topology_topic,
)
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.topology.plan import StoreSpec, SubTopology, TopologyPlan

_IN_SYNC = "min.insync.replicas"
_AT_LEAST = {"retention.ms", "min.compaction.lag.ms", "delete.retention.ms", _IN_SYNC}


@dataclass(frozen=True)
class TopicSpec:
    """A topic as the application needs it. If `may_have_more`, more partitions are accepted and missing ones are added.

    `replicas` is the least number; -1 leaves it to the settings.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    may_have_more: bool = False
    replicas: int = -1

    def tolerating(self, brokers: int) -> TopicSpec:
        """Return the same topic with the settings that survive the loss of `brokers` at once; 0 asks for nothing."""
        if not brokers:
            return self
        replicas, in_sync = replication_for(brokers)
        return replace(self, config={**self.config, _IN_SYNC: str(in_sync)}, replicas=replicas)


def replication_for(brokers: int) -> tuple[int, int]:
    """Return the number of replicas, and of those that must be in sync, that survive the loss of `brokers` at once."""
    return 2 * brokers + 1, brokers + 1


def tolerated_failures(replicas: int, min_in_sync: int) -> int:
    """Return how many brokers may be lost at once without loss of acknowledged records and with writes still accepted."""
    return max(0, min(replicas - min_in_sync, min_in_sync - 1))


def user_topics(plan: TopologyPlan) -> list[str]:
    """Return the sources and sinks of the user, which must exist before the start, as with Kafka Streams."""
    internal = set(plan.repartition_topics)
    topics = [t for s in plan.subtopologies for t in (*s.source_topics, *s.sink_topics)]
    return [topic for topic in dict.fromkeys(topics) if topic not in internal]


def internal_topics(plan: TopologyPlan, settings: Settings, partitions: Mapping[str, int]) -> list[TopicSpec]:
    """Return the topics that Tidemark creates itself. `partitions` are the sources'. A changelog has one per task."""
    app = plan.application_id
    specs: list[TopicSpec] = []
    counts = with_repartition_topics(plan, partitions)
    for subtopology in plan.subtopologies:
        tasks = tasks_of(subtopology, counts)
        specs += [
            TopicSpec(sink.topic, counts[sink.topic], repartition_config())
            for sink in subtopology.sinks
            if sink.is_repartition
        ]
        specs += [
            TopicSpec(changelog_topic(app, store.name, store.generation), tasks, changelog_policy(store).config())
            for store in subtopology.stores
            if store.has_changelog
        ]
    most = max(counts[s.lead.topic] for s in plan.subtopologies)
    specs.append(TopicSpec(commits_topic(app), most, commits_config(settings), may_have_more=True))
    specs.append(TopicSpec(dlq_topic(app), most, dlq_config(), may_have_more=True))
    # One partition, so that the events of several instances have one order.
    specs.append(TopicSpec(events_topic(app), 1, events_config()))
    specs.append(TopicSpec(topology_topic(app), 1, topology_config()))
    return list({spec.name: spec.tolerating(plan.tolerated_broker_failures) for spec in specs}.values())


def endpoints_spec(plan: TopologyPlan) -> TopicSpec:
    """Return the topic of the addresses of queries. No state depends on it, so only what answers queries creates it."""
    return TopicSpec(endpoints_topic(plan.application_id), 1, endpoints_config()).tolerating(
        plan.tolerated_broker_failures
    )


def with_repartition_topics(plan: TopologyPlan, partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of all sources, with repartition topics that do not exist yet.

    Such a topic gets the count of the topics it is joined with. If none of these exists yet, it gets the task count of the
    sub-topology that writes it, and topics that are joined with each other all get the highest of their counts, as in Kafka
    Streams. A topic that comes from one with which it is joined gets the count of that one. Raises `PreflightFailed` with the
    sources on which a count depends and that do not exist.
    """
    counts = dict(partitions)
    for subtopology in plan.subtopologies:
        known = [counts[topic] for topic in subtopology.source_topics if topic in counts]
        if known:
            counts |= {topic: max(known) for topic in subtopology.source_topics if topic not in counts}
    tasks_of_writer: dict[str, int] = {}
    while missing := [topic for topic in plan.repartition_topics if topic not in counts]:
        for subtopology in plan.subtopologies:
            if all(topic in counts for topic in subtopology.source_topics):
                tasks = tasks_of(subtopology, counts)
                tasks_of_writer |= {sink.topic: tasks for sink in subtopology.sinks if sink.topic in missing}
        joined = [[topic for topic in s.source_topics if topic in missing] for s in plan.subtopologies]
        decided = [topics for topics in joined if topics and all(topic in tasks_of_writer for topic in topics)]
        if not decided:
            # A topic that is joined with one from which it comes waits for the count of both, so the other one decides.
            decided = [topics for topics in joined if any(topic in tasks_of_writer for topic in topics)][:1]
        if not decided:
            absent = sorted({topic for s in plan.subtopologies for topic in s.source_topics} - {*counts, *missing})
            raise PreflightFailed(
                f"{plan.application_id}: source topics {', '.join(absent)} do not exist, and the partition counts of "
                f"{', '.join(missing)} depend on them; create them"
            )
        for topics in decided:
            counts |= dict.fromkeys(topics, max(tasks_of_writer[topic] for topic in topics if topic in tasks_of_writer))
    return counts


def format_partitions(plan: TopologyPlan, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions of sinks and dead letters, whose end offsets every commit record holds.

    `partitions` are the counts of all topics of the cluster.
    """
    topics = [*(topic for s in plan.subtopologies for topic in s.sink_topics), dlq_topic(plan.application_id)]
    return _all_of(topics, partitions)


def changelog_topics(application_id: str, stores: Iterable[StoreSpec]) -> list[str]:
    """Return the changelogs of those stores that have one of their own."""
    return [changelog_topic(application_id, store.name, store.generation) for store in stores if store.has_changelog]


def written_topics(plan: TopologyPlan) -> list[str]:
    """Return the topics that commits write to: sinks, dead letters, changelogs, commit records, the description."""
    app = plan.application_id
    sinks = (topic for s in plan.subtopologies for topic in s.sink_topics)
    own = (dlq_topic(app), *changelog_topics(app, plan.stores), commits_topic(app), topology_topic(app))
    return list(dict.fromkeys([*sinks, *own]))


def written_partitions(plan: TopologyPlan, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions of `written_topics`. `partitions` are the counts of all topics of the cluster."""
    return _all_of(written_topics(plan), partitions)


def _all_of(topics: Iterable[str], partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in dict.fromkeys(topics) for n in range(partitions.get(topic, 0))]


def tasks_of(subtopology: SubTopology, partitions: Mapping[str, int]) -> int:
    """Return the number of tasks of a sub-topology, one per partition. All its sources must have the same count.

    Raises `PreflightFailed` with the topics and the remedy (see invariant: co-partitioning).
    """
    counts = {topic: partitions[topic] for topic in subtopology.source_topics}
    if len(set(counts.values())) > 1:
        summary = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise PreflightFailed(
            f"topics that are joined need the same number of partitions, so that a key is in the same one of each: {summary}; "
            "send one of them through repartition(), or create its topic again with the other's number"
        )
    return counts[subtopology.lead.topic]


def task_ids(plan: TopologyPlan, partitions: Mapping[str, int]) -> list[TaskId]:
    """Return all tasks of all sub-topologies. Raises `PreflightFailed` with a topic that is missing."""
    for subtopology in plan.subtopologies:
        for topic in subtopology.source_topics:
            if topic not in partitions:
                raise PreflightFailed(
                    f"topic {topic} of {plan.application_id} does not exist, so it has never run here; start an instance"
                )
    return [TaskId(s.index, number) for s in plan.subtopologies for number in range(tasks_of(s, partitions))]


def ensure_user_topics(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> list[str]:
    """Create missing sources and sinks with `num_partitions`, and return the names of those created. Blocks."""
    existing = partition_counts(admin, settings)
    missing = [topic for topic in user_topics(plan) if topic not in existing]
    specs = [
        TopicSpec(topic, settings.num_partitions, {}).tolerating(plan.tolerated_broker_failures) for topic in missing
    ]
    create_topics(admin, specs, settings)
    return missing


def partition_counts(admin: AdminClient, settings: Settings) -> dict[str, int]:
    """Return the partition count of every topic of the cluster. Blocks. Raises `OutcomeUnknown` if no broker answers."""
    return {name: facts.partitions for name, facts in describe_topics(admin, settings).items()}


def create_topics(
    admin: AdminClient, specs: Iterable[TopicSpec], settings: Settings, created: Callable[[str], None] | None = None
) -> None:
    """Create topics and wait until every partition has a leader. A topic that already exists is accepted.

    `created` is called with each topic that this call has created, also when it fails later. Blocks. Raises
    `PreflightFailed` with the topic, the reason and the remedy, `OutcomeUnknown` if the brokers do not answer in time.
    """
    wanted = [
        NewTopic(spec.name, spec.partitions, max(spec.replicas, settings.replication_factor), config=dict(spec.config))
        for spec in specs
    ]
    if not wanted:
        return
    failed: TidemarkError | None = None
    timeout_s = settings.broker_timeout_ms / 1000
    find_controller(admin, timeout_s)
    # Longer than the broker may take, so that its answer comes.
    answers = admin.create_topics(wanted, operation_timeout=timeout_s, request_timeout=2 * timeout_s)
    for name, future in answers.items():
        try:
            future.result()
            if created is not None:
                created(name)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            what = f"topic {name} cannot be created"
            if reason.code() == KafkaError.INVALID_REPLICATION_FACTOR:
                failed = PreflightFailed(
                    f"{what}: {reason.str()}; set TIDEMARK_REPLICATION_FACTOR to at most the number of brokers, lower "
                    "`tolerated_broker_failures` of the topology, or add brokers"
                )
            else:
                right = "create it by hand, or give this user the right to (`tidemark acls` prints the ACLs)"
                failed = failed_request(what, error, right)
            failed.__cause__ = error
    if failed is not None:
        raise failed
    wait_until_led(admin, [spec.topic for spec in wanted], settings)


def grow_topics(admin: AdminClient, specs: Sequence[TopicSpec], settings: Settings) -> None:
    """Add the missing partitions and wait until they have leaders. Blocks.

    Raises `PreflightFailed`, and `OutcomeUnknown` if the brokers do not answer in time.
    """
    wanted = [NewPartitions(spec.name, spec.partitions) for spec in specs]
    if not wanted:
        return
    timeout_s = settings.broker_timeout_ms / 1000
    find_controller(admin, timeout_s)
    for name, future in admin.create_partitions(wanted, request_timeout=timeout_s).items():
        try:
            future.result()
        except KafkaException as error:
            what = f"failed to add partitions to topic {name}"
            raise failed_request(what, error, "add them by hand, or give this user the right to") from error

    def grown() -> bool:
        found = partition_counts(admin, settings)
        return all(found.get(spec.name, 0) >= spec.partitions for spec in specs)

    if not wait_until(grown, timeout_s):
        raise PreflightFailed(
            f"topics {', '.join(spec.name for spec in specs)} do not have their new partitions after "
            f"{settings.broker_timeout_ms} ms; look at the brokers' logs, or raise TIDEMARK_BROKER_TIMEOUT_MS"
        )
    wait_until_led(admin, [spec.name for spec in specs], settings)


def ensure_internal_topics(
    plan: TopologyPlan,
    settings: Settings,
    admin: AdminClient,
    existing: Mapping[str, int],
    committed: Collection[str] = (),
    created: Callable[[str], None] | None = None,
    left_out: Collection[str] = (),
) -> None:
    """Create the missing internal topics and verify the existing ones. Blocks.

    `committed` are topics that the last commits knew: they are never created, as an empty one would be taken for the state.
    `created` is called with each topic that was created. Topics in `left_out` are neither created nor verified. Raises
    `PreflightFailed` with the topic, what was found, what is needed, and the remedy.
    """
    specs = [spec for spec in internal_topics(plan, settings, existing) if spec.name not in left_out]
    missing = [spec for spec in specs if spec.name not in existing]
    for spec in missing:
        if spec.name in committed:
            raise PreflightFailed(
                f"topic {spec.name} was deleted in the meantime: it held state and is not created again; nothing was changed; "
                "try again to see what is lost and how to repair it"
            )
    create_topics(admin, missing, settings, created)
    grow_topics(
        admin, [s for s in specs if s.may_have_more and existing.get(s.name, s.partitions) < s.partitions], settings
    )
    facts = describe_known_topics(admin, [spec.name for spec in specs], settings)
    configs = topic_configs(admin, [spec.name for spec in specs], settings)
    for spec in specs:
        verify_topic(spec, facts[spec.name], configs[spec.name], settings.replication_factor)
        verify_tolerated_failures(spec.name, facts[spec.name], configs[spec.name], plan.tolerated_broker_failures)


def verify_topic(spec: TopicSpec, found: TopicFacts, config: Mapping[str, str], replication_factor: int) -> None:
    """Compare an internal topic with what the application needs; `replication_factor` -1 accepts any.

    Raises `PreflightFailed`.
    """
    if found.partitions < spec.partitions or (found.partitions > spec.partitions and not spec.may_have_more):
        raise PreflightFailed(
            f"topic {spec.name} has {found.partitions} partitions, but its tasks need {spec.partitions}: the source's "
            "partition count has changed; restore the old count, or use `tidemark rescale run NAME --tasks "
            f"{spec.partitions}`"
        )
    if found.replicas < replication_factor:
        raise PreflightFailed(
            f"topic {spec.name} has {found.replicas} replicas, but replication_factor is {replication_factor}; add "
            "replicas with `tidemark kafka reassign-partitions`, or set TIDEMARK_REPLICATION_FACTOR to "
            f"{found.replicas}"
        )
    verify_writable(spec.name, found, config)
    for key, needed in spec.config.items():
        value = config.get(key, "")
        if not _is_enough(key, value, needed):
            raise PreflightFailed(
                f"topic {spec.name} has {key}={value}, but the application needs {needed}; see `tidemark topics "
                f"plan NAME`, then `tidemark topics run NAME`; or `tidemark kafka configs --alter --entity-type topics "
                f"--entity-name {spec.name} --add-config {key}=[{needed}]`"
            )


def verify_writable(topic: str, found: TopicFacts, config: Mapping[str, str]) -> None:
    """Verify that records with acks=all can be written: a topic with fewer replicas than must be in sync accepts none.

    Raises `PreflightFailed`.
    """
    in_sync = int(config.get(_IN_SYNC, "1"))
    if found.replicas < in_sync:
        raise PreflightFailed(
            f"topic {topic} has {found.replicas} replicas and min.insync.replicas={in_sync}, so nothing can be written; "
            "add replicas with `tidemark kafka reassign-partitions`, or lower the setting with `tidemark kafka configs "
            f"--alter --entity-type topics --entity-name {topic} --add-config min.insync.replicas={found.replicas}`"
        )


def verify_tolerated_failures(
    topic: str, found: TopicFacts, config: Mapping[str, str], tolerated_broker_failures: int
) -> None:
    """Verify that a topic survives the loss of `tolerated_broker_failures` brokers at once. Raises `PreflightFailed`."""
    in_sync = int(config.get(_IN_SYNC, "1"))
    stands = tolerated_failures(found.replicas, in_sync)
    if stands < tolerated_broker_failures:
        replicas, needed = replication_for(tolerated_broker_failures)
        raise PreflightFailed(
            f"topic {topic} has {found.replicas} replicas and {_IN_SYNC}={in_sync}, so it survives the loss of {stands} "
            f"brokers, but the topology asks for {tolerated_broker_failures}: that takes {replicas} replicas (`tidemark kafka "
            f"reassign-partitions`) and {_IN_SYNC}={needed} (`tidemark kafka configs --alter --entity-type topics "
            f"--entity-name {topic} --add-config {_IN_SYNC}={needed}`); or lower `tolerated_broker_failures` of the topology"
        )


def _is_enough(key: str, found: str, needed: str) -> bool:
    if key in _AT_LEAST:
        return found == "-1" or (found.isdigit() and int(found) >= int(needed))
    return set(found.split(",")) == set(needed.split(","))

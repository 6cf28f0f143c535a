"""Preflight, topic creation and lag on a real broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tidemark.errors import ExitCode, OutcomeUnknown, PreflightFailed
from tidemark.kafka.cluster import describe_topics, topic_configs
from tidemark.kafka.lag import lag_of
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import TopicPartition
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.topology.builder import Topology
from tidemark.topology.plan import TopologyPlan
from tidemark.topology.windows import tumbling

pytestmark = pytest.mark.broker
Unique = Callable[[str], str]


@pytest.fixture
def plan(unique: Unique) -> TopologyPlan:
    topology = Topology(unique("app"))
    beats = topology.stream(unique("beats"), schema="n INT").group_by_key()
    beats.windowed_by(tumbling("60s").grace("5s")).count(store="minutes", retention="6h").to(unique("counts"))
    return topology.plan()


def alter(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)

    def applied() -> bool:
        return topic_configs(admin, [topic], Settings.load())[topic][name] == value

    assert wait_until(applied, 60)


def test_should_create_user_topics_once_and_internal_topics_in_the_preflight(
    plan: TopologyPlan, admin: AdminClient, settings: Settings, unique: Unique
) -> None:
    assert ensure_user_topics(plan, settings, admin) == [unique("beats"), unique("counts")]
    assert ensure_user_topics(plan, settings, admin) == []
    app = plan.application_id
    before = preflight(plan, settings, admin)
    expected = {unique("beats"): 4, unique("counts"): 4}
    expected |= {f"{app}-minutes-changelog": 4, f"{app}-commits": 4, f"{app}-dlq": 4, f"{app}-events": 1}
    expected[f"{app}-topology"] = 1
    assert {name: before.get(name) for name in expected} == expected
    again = preflight(plan, settings, admin)
    assert {name: again.get(name) for name in expected} == expected, "a second start verifies and changes nothing"
    changelog = topic_configs(admin, [f"{app}-minutes-changelog"], settings)[f"{app}-minutes-changelog"]
    assert set(changelog["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert changelog["retention.ms"] == str(6 * 3_600_000 + 86_400_000)
    assert changelog["min.compaction.lag.ms"] == "600000"


def test_should_name_a_missing_source_and_a_missing_sink(
    plan: TopologyPlan, admin: AdminClient, settings: Settings, create_topic: Callable[..., str], unique: Unique
) -> None:
    with pytest.raises(PreflightFailed, match=f"source topic {unique('beats')} .*tidemark topics create"):
        preflight(plan, settings, admin)
    create_topic(unique("beats"), 2)
    with pytest.raises(PreflightFailed, match=f"sink topic {unique('counts')} .*tidemark topics create"):
        preflight(plan, settings, admin)
    assert f"{plan.application_id}-commits" not in describe_topics(admin, settings), "nothing is half made"


@pytest.mark.parametrize(
    ("partitions", "config", "says"),
    [
        (3, {}, "has 3 partitions, but its tasks need 4"),
        (4, {"cleanup_policy": "delete"}, "cleanup.policy=delete, but the application needs compact,delete"),
        (4, {"cleanup_policy": "compact,delete", "retention_ms": "1000"}, "retention.ms=1000"),
    ],
)
def test_should_refuse_a_changelog_with_another_configuration(
    plan: TopologyPlan,
    admin: AdminClient,
    settings: Settings,
    create_topic: Callable[..., str],
    partitions: int,
    config: dict[str, str],
    says: str,
) -> None:
    ensure_user_topics(plan, settings, admin)
    # `create_topic` writes dots for underscores; enough compaction lag so that only the case's fault is found.
    create_topic(f"{plan.application_id}-minutes-changelog", partitions, **config, min_compaction_lag_ms="600000")
    with pytest.raises(PreflightFailed) as refused:
        preflight(plan, settings, admin)
    assert says in str(refused.value)
    assert refused.value.exit_code is ExitCode.REFUSED


def test_should_refuse_a_topic_setting_that_was_changed_outside_tidemark(
    plan: TopologyPlan, admin: AdminClient, settings: Settings
) -> None:
    ensure_user_topics(plan, settings, admin)
    preflight(plan, settings, admin)
    commits = f"{plan.application_id}-commits"
    alter(admin, commits, "min.compaction.lag.ms", "1")
    with pytest.raises(
        PreflightFailed, match=f"{commits} has min.compaction.lag.ms=1, but the application needs 604800000"
    ):
        preflight(plan, settings, admin)


def test_should_refuse_a_sink_that_can_never_have_enough_replicas_in_sync(
    plan: TopologyPlan, admin: AdminClient, settings: Settings, unique: Unique
) -> None:
    ensure_user_topics(plan, settings, admin)
    alter(admin, unique("counts"), "min.insync.replicas", "2")
    with pytest.raises(PreflightFailed, match=f"{unique('counts')} has 1 replicas and min.insync.replicas=2"):
        preflight(plan, settings, admin)


def test_should_refuse_more_replicas_than_brokers(plan: TopologyPlan, admin: AdminClient, settings: Settings) -> None:
    wants_three = settings.model_copy(update={"replication_factor": 3})
    with pytest.raises(PreflightFailed, match=r"cannot be created: .*TIDEMARK_REPLICATION_FACTOR"):
        ensure_user_topics(plan, wants_three, admin)
    ensure_user_topics(plan, settings, admin)
    preflight(plan, settings, admin)
    with pytest.raises(PreflightFailed, match="has 1 replicas, but replication_factor is 3"):
        preflight(plan, wants_three, admin)


def test_should_report_an_absent_broker_in_one_line_and_allow_another_try(plan: TopologyPlan, tmp_path: Path) -> None:
    settings = Settings.load(bootstrap_servers="127.0.0.1:1", broker_timeout_ms=500, state_dir=tmp_path / "state")
    with pytest.raises(OutcomeUnknown, match=r"cannot reach Kafka at 127\.0\.0\.1:1: .*tidemark up") as failed:
        preflight(plan, settings, AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}))
    assert failed.value.exit_code is ExitCode.RETRY
    assert "\n" not in str(failed.value)


def test_should_refuse_a_state_folder_that_cannot_be_created(
    plan: TopologyPlan, admin: AdminClient, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    under_a_file = settings.model_copy(update={"state_dir": tmp_path / "file" / "state"})
    with pytest.raises(PreflightFailed, match="TIDEMARK_STATE_DIR"):
        preflight(plan, under_a_file, admin)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_should_refuse_a_state_folder_that_is_not_writable(
    plan: TopologyPlan, admin: AdminClient, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    locked = settings.model_copy(update={"state_dir": tmp_path / "locked"})
    with pytest.raises(PreflightFailed, match="permission denied"):
        preflight(plan, locked, admin)


def test_should_measure_lag_from_the_committed_offsets_of_the_group(
    plan: TopologyPlan, admin: AdminClient, settings: Settings, unique: Unique
) -> None:
    ensure_user_topics(plan, settings, admin)
    topic = unique("beats")
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    for partition, records in enumerate((3, 1, 0, 0)):
        for _ in range(records):
            producer.produce(topic, b"{}", partition=partition)
    assert producer.flush(60) == 0

    def lag() -> list[tuple[TopicPartition, int | None, int, int | None, str | None]]:
        rows = lag_of(plan, {topic: 4}, admin, settings)
        return [(r.partition, r.committed_offset, r.end_offset, r.lag_offsets, r.member) for r in rows]

    p = [TopicPartition(topic, index) for index in range(4)]
    ends = [3, 1, 0, 0]
    assert lag() == [(p[i], None, ends[i], None, None) for i in range(4)], "a group that never was"

    config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": plan.application_id, "log_level": 0}
    consumer = Consumer(config | {"group.instance.id": unique("member"), "enable.auto.commit": False})
    consumer.subscribe([topic])
    try:
        assert wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 4, 60)
        consumer.commit(offsets=[ClientPartition(topic, 0, 1), ClientPartition(topic, 1, 1)], asynchronous=False)
        member = unique("member")
        committed, lags = [1, 1, None, None], [2, 0, None, None]
        assert lag() == [(p[i], committed[i], ends[i], lags[i], member) for i in range(4)]
    finally:
        consumer.close()
    with pytest.raises(PreflightFailed, match=r"source topic .* does not exist"):
        lag_of(plan, {}, admin, settings)


def test_should_name_the_owner_of_the_task_for_every_source_of_a_join(
    admin: AdminClient, settings: Settings, unique: Unique
) -> None:
    topology = Topology(unique("app"))
    table = topology.table(unique("patients"), store="patients", schema="name STRING")
    topology.stream(unique("beats"), schema="n INT").join(table).to(unique("joined"))
    plan = topology.plan()
    ensure_user_topics(plan, settings, admin)
    (subtopology,) = plan.subtopologies
    partitions = dict.fromkeys(subtopology.source_topics, 4)
    config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": plan.application_id, "log_level": 0}
    consumer = Consumer(config | {"group.instance.id": unique("member"), "enable.auto.commit": False})
    consumer.subscribe([subtopology.lead.topic])
    try:
        assert wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 4, 60)
        owners = {row.partition: row.member for row in lag_of(plan, partitions, admin, settings)}
    finally:
        consumer.close()
    assert owners == {TopicPartition(topic, n): unique("member") for topic in partitions for n in range(4)}
    assert len(partitions) == 2

"""Creating and verifying topics on a real broker; every failure is one line that names the remedy (row B2)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tidemark.broker.clients import librdkafka_config, spark_kafka_options
from tidemark.broker.preflight import preflight
from tidemark.broker.topics import ensure_internal_topics, ensure_user_topics, partition_counts
from tidemark.errors import OutcomeUnknown, PreflightFailed
from tidemark.settings import Settings
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling


@pytest.fixture
def plan(unique):
    topology = Topology(unique("app"))
    stream = topology.stream(unique("in"), schema="id STRING, at BIGINT", key="id", timestamp="at")
    windows = tumbling("60s").grace("5s")
    stream.group_by_key().windowed_by(windows).count(name="n", store="counts", retention="6h").to(unique("out"))
    stream.group_by_key().count(name="n", store="totals")
    return topology.plan()


@pytest.fixture
def own(broker, tmp_path):
    return Settings.load(bootstrap_servers=broker.bootstrap, var_dir=tmp_path / "var", state_dir=tmp_path / "state")


def changelog(plan, store):
    return f"{plan.application_id}-{store}-changelog"


@pytest.mark.broker
def test_should_create_internal_topics_with_a_partition_per_task_and_then_find_them_right(plan, own, admin):
    ensure_user_topics(plan, own, admin)
    preflight(plan, own, admin)
    counts = preflight(plan, own, admin)
    app = plan.application_id
    names = [changelog(plan, "counts"), changelog(plan, "totals"), f"{app}-commits", f"{app}-dlq"]
    assert [counts[name] for name in names] == [4, 4, 4, 4]


@pytest.mark.broker
def test_should_name_the_source_that_is_missing(plan, own, admin):
    with pytest.raises(PreflightFailed, match=r"topic in-\w+ of app-\w+ does not exist.*tidemark topics create"):
        preflight(plan, own, admin)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"cleanup_policy": "delete"}, "cleanup.policy=delete"),
        (
            {"cleanup_policy": "compact,delete", "retention_ms": "21600000", "min_compaction_lag_ms": "600000"},
            "retention.ms=21600000",
        ),
    ],
)
def test_should_refuse_a_changelog_with_wrong_settings_and_name_the_command(
    plan, own, admin, create_topic, config, said
):
    ensure_user_topics(plan, own, admin)
    create_topic(changelog(plan, "counts"), partitions=4, **config)
    with pytest.raises(PreflightFailed, match="tidemark kafka configs") as refused:
        preflight(plan, own, admin)
    assert said in str(refused.value)


@pytest.mark.broker
def test_should_refuse_a_changelog_with_too_few_partitions(plan, own, admin, create_topic):
    ensure_user_topics(plan, own, admin)
    create_topic(changelog(plan, "counts"), partitions=3)
    with pytest.raises(PreflightFailed, match="has 3 partitions, its tasks need 4"):
        preflight(plan, own, admin)


@pytest.mark.broker
def test_should_refuse_more_replicas_than_brokers(plan, own, admin):
    ensure_user_topics(plan, own, admin)
    three = own.model_copy(update={"replication_factor": 3})
    with pytest.raises(PreflightFailed, match="TIDEMARK_REPLICATION_FACTOR"):
        ensure_internal_topics(plan, three, admin, partition_counts(admin, own))


@pytest.mark.broker
def test_should_name_a_state_folder_that_cannot_be_written(plan, own, admin, tmp_path):
    ensure_user_topics(plan, own, admin)
    (tmp_path / "file").write_text("")
    blocked = own.model_copy(update={"state_dir": tmp_path / "file" / "state"})
    with pytest.raises(PreflightFailed, match="TIDEMARK_STATE_DIR"):
        preflight(plan, blocked, admin)


def test_should_say_in_one_line_that_no_broker_answers(own):
    away = own.model_copy(update={"bootstrap_servers": "127.0.0.1:1", "broker_timeout_ms": 500})
    with pytest.raises(OutcomeUnknown, match=r"cannot reach Kafka at 127\.0\.0\.1:1.*tidemark up"):
        partition_counts(AdminClient(librdkafka_config(away)), away)


def test_should_give_credentials_to_clients_and_show_them_nowhere():
    settings = Settings(security_protocol="SASL_SSL", sasl_username="u", sasl_password='p"w', ssl_ca_location="/ca.pem")
    assert 'p"w' not in repr(settings)
    assert librdkafka_config(settings)["sasl.password"] == 'p"w'
    options = spark_kafka_options(settings)
    assert options["kafka.sasl.jaas.config"].endswith('username="u" password="p\\"w";')
    assert options["kafka.ssl.truststore.location"] == "/ca.pem"

"""Every kind of client connects to a secured broker in every supported way, with options from one place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession
from spark_jobs.kafka_reading import KafkaReader
from spark_jobs.session import spark_session
from tests.support.secured import PASSWORD, USER, Secured, known_acls

from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import brokers_answer
from tidemark.kafka.tools import kafka_tool
from tidemark.names import TopicPartition as Place
from tidemark.processes import wait_until

WAYS = ("mtls", "scram", "oauth")
pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def topic(guarded_broker: Secured) -> str:
    """A topic with two records that the user `app` may do anything with."""
    admin = guarded_broker.admin
    admin.create_topics([NewTopic("beats", 1, 1)])["beats"].result(60)
    everything = ("*", ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    acls = [AclBinding(kind, *everything) for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
    for future in admin.create_acls(acls).values():
        future.result(60)
    assert wait_until(lambda: set(acls) <= known_acls(admin), 60)
    producer = Producer({"bootstrap.servers": guarded_broker.broker.bootstrap})
    for value in (b"1", b"2"):
        producer.produce("beats", value)
    assert producer.flush(60) == 0
    return "beats"


@pytest.fixture(scope="module")
def session(spark: SparkSession, guarded_broker: Secured) -> SparkSession:
    """That of all tests of this process, as spark-submit's would be, told what one of the ways takes."""
    return spark_session(guarded_broker.settings("oauth", spark_shuffle_partitions=1), "secured")


@pytest.mark.parametrize("candidate", WAYS)
def test_should_connect_with_librdkafka(candidate: str, guarded_broker: Secured, topic: str) -> None:
    config = librdkafka_config(guarded_broker.settings(candidate))
    assert topic in AdminClient(config).list_topics(timeout=60).topics
    consumer = Consumer({**config, "group.id": "any", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consumer.consume(2, 60)] == [b"1", b"2"]
    consumer.close()


@pytest.mark.parametrize("candidate", WAYS)
def test_should_connect_with_kafkas_tools(candidate: str, guarded_broker: Secured, topic: str) -> None:
    code, said = kafka_tool("topics", "--list", settings=guarded_broker.settings(candidate), capture=True)
    assert code == 0
    assert topic in said.splitlines()


@pytest.mark.parametrize("tool", [("console-consumer", "--topic", "beats", "--from-beginning", "--max-messages", "2")])
def test_should_connect_with_a_console_tool(tool: tuple[str, ...], guarded_broker: Secured, topic: str) -> None:
    code, said = kafka_tool(*tool, "--timeout-ms", "30000", settings=guarded_broker.settings("scram"), capture=True)
    assert (code, said.split()) == (0, ["1", "2"])


@pytest.mark.spark
@pytest.mark.parametrize("candidate", WAYS)
def test_should_connect_with_sparks_kafka_source(
    candidate: str, guarded_broker: Secured, topic: str, session: SparkSession
) -> None:
    place = Place(topic, 0)
    rows = KafkaReader(session, guarded_broker.settings(candidate)).between({place: 0}, {place: 2})
    assert [bytes(row.value) for row in rows.collect()] == [b"1", b"2"]


@pytest.mark.parametrize("candidate", WAYS)
def test_should_connect_with_the_probe_of_tidemark_up(candidate: str, guarded_broker: Secured) -> None:
    settings = guarded_broker.settings(candidate)
    assert brokers_answer(librdkafka_config(settings), 60)


@pytest.mark.parametrize(
    ("candidate", "wrong"),
    [
        ("mtls", {"ssl_certificate_location": ""}),
        ("scram", {"sasl_password": "guessed"}),
        ("oauth", {"sasl_password": "guessed"}),
        ("scram", {"ssl_ca_location": ""}),
    ],
)
def test_should_refuse_clients_with_wrong_credentials(
    candidate: str, wrong: dict[str, str], guarded_broker: Secured
) -> None:
    settings = guarded_broker.settings(candidate, **wrong)
    assert not brokers_answer(librdkafka_config(settings), 3)


def test_should_pass_an_extra_client_option_to_the_broker(
    guarded_broker: Secured, topic: str, unique: Callable[[str], str]
) -> None:
    settings = guarded_broker.settings("scram", kafka={"client.id": "ward-7"})
    group = unique("group")
    consumer = Consumer({**librdkafka_config(settings), "group.id": group})
    consumer.subscribe([topic])
    assert wait_until(lambda: consumer.poll(0.2) is not None or bool(consumer.assignment()), 60)
    (member,) = guarded_broker.admin.describe_consumer_groups([group])[group].result(60).members
    consumer.close()
    assert member.client_id == "ward-7"


def test_should_keep_the_password_out_of_the_arguments_and_logs_of_a_tool(
    guarded_broker: Secured, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    _, said = kafka_tool("topics", "--list", settings=guarded_broker.settings("oauth"), capture=True)
    shown = "".join(capfd.readouterr())
    assert PASSWORD not in said + shown

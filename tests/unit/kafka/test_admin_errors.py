"""The error of a failed admin request: a permission is named only when the broker says that it is missing."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.errors import ExitCode, OutcomeUnknown, PreflightFailed
from tidemark.kafka.admin_errors import failed_request
from tidemark.kafka.cluster import broker_config, topic_configs, topic_ids
from tidemark.kafka.topics import TopicSpec, create_topics, grow_topics
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.replay import purge
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.settings import Settings

RIGHT = "give this user the right to do it"


ONE = [TopicSpec("t", 1, {})]


def purge_letters(admin, _settings):
    place = TopicPartition("t", 0)
    ends = SimpleNamespace(beginnings=lambda _: {place: 0}, at_time=lambda *_: {place: 9}, of=lambda _: {place: 9})
    return purge(SimpleNamespace(topic="t", partitions=[place], admin=admin, ends=ends, timeout_s=0.2), 1)


REQUESTS = {
    "settings of topics": lambda admin, settings: topic_configs(admin, ["t"], settings),
    "settings of a broker": lambda admin, settings: broker_config(admin, 1, settings),
    "ids": lambda admin, settings: topic_ids(admin, ["t"], settings),
    "creation": lambda admin, settings: create_topics(admin, ONE, settings),
    "partitions": lambda admin, settings: grow_topics(admin, ONE, settings),
    "change": lambda admin, settings: apply_changes([TopicChange("t", "retention.ms", "1", "2")], settings, admin),
    "purge": purge_letters,
}


@pytest.fixture
def silent():
    """A broker that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS.keys())
def test_should_allow_a_retry_and_name_no_permission_when_a_broker_does_not_answer_in_time(silent, request_of):
    settings = Settings.load(bootstrap_servers=silent, broker_timeout_ms=200)
    with pytest.raises(OutcomeUnknown) as raised:
        request_of(AdminClient({"bootstrap.servers": silent, "log_level": 0}), settings)
    assert raised.value.exit_code is ExitCode.RETRY
    assert "right to" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "kind", "names_right"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PreflightFailed, True),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, PreflightFailed, True),
        (KafkaError.INVALID_CONFIG, PreflightFailed, False),
        (KafkaError.POLICY_VIOLATION, PreflightFailed, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, PreflightFailed, False),
        (KafkaError._TIMED_OUT, OutcomeUnknown, False),
        (KafkaError._TRANSPORT, OutcomeUnknown, False),
        (KafkaError.NOT_CONTROLLER, OutcomeUnknown, False),
        (KafkaError.NOT_LEADER_FOR_PARTITION, OutcomeUnknown, False),
    ],
)
def test_should_distinguish_permanent_refusals_from_errors_that_may_be_retried(code, kind, names_right):
    error = failed_request("topic t cannot be made", KafkaException(KafkaError(code)), RIGHT)
    assert type(error) is kind
    assert str(error).startswith("topic t cannot be made: ")
    assert (RIGHT in str(error)) is names_right

"""Outputs with lower acks than state: which client sends them, and what a batch waits for."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException

from tidemark.commit import producer
from tidemark.commit.producer import IdempotentProducer
from tidemark.errors import BatchAborted
from tidemark.topology.plan import Acks

STATE = "all"


NOWHERE = {"bootstrap.servers": "localhost:1", "log_level": 0}


class RecordingClient:
    """A `Producer` that writes down what is asked of it in a list that all share; `left` is what a flush leaves over."""

    def __init__(self, config, journal, left):
        self.acks, self._journal, self._left = config["acks"], journal, left

    def produce(self, topic, *_values, **_options):
        self._journal.append((self.acks, "send", topic))

    def produce_batch(self, topic, messages, **_options):
        self._journal.append((self.acks, "send", topic))
        return len(messages)

    def flush(self, _timeout_s):
        self._journal.append((self.acks, "flush", None))
        return self._left.get(self.acks, 0)

    def purge(self):
        self._journal.append((self.acks, "purge", None))


@pytest.fixture
def recording(monkeypatch):
    """`recording(acks, left)` makes a producer of recording clients: it, their settings and their journal."""

    def make(acks, left=None):
        journal, configs = [], []

        def client(config):
            configs.append(config)
            return RecordingClient(config, journal, left or {})

        monkeypatch.setattr(producer, "Producer", client)
        return IdempotentProducer({}, "app-0", 1000, 100, lambda _: None, acks, ["out"]), configs, journal

    return make


def send_everywhere(producer):
    producer.begin()
    producer.send_many("out", [{"key": b"k", "value": b"v", "timestamp": 5}])
    producer.send_many("out", [{"key": b"k", "value": b"v"}])
    producer.send_one("out", b"k", b"v", ())
    producer.send_many("changelog", [{"key": b"k", "value": b"v"}], partition=0)
    producer.send_many("repartition", [{"key": b"k", "value": b"v", "timestamp": 5}])
    producer.send_one("dlq", b"k", b"v", ())


@pytest.mark.parametrize("acks", [Acks.NONE, Acks.LEADER])
def test_should_lower_acks_only_for_outputs(recording, acks):
    producer, configs, journal = recording(acks)
    send_everywhere(producer)
    assert journal == [
        *[(acks.value, "send", "out")] * 3, *[(STATE, "send", topic) for topic in ("changelog", "repartition", "dlq")],
    ]  # fmt: skip
    summary = [(c["acks"], c["enable.idempotence"], c.get("max.in.flight.requests.per.connection")) for c in configs]
    assert summary == [(STATE, True, None), (acks.value, False, 1)]


def test_should_use_one_client_when_outputs_use_acks_all(recording):
    producer, configs, journal = recording(Acks.ALL)
    send_everywhere(producer)
    producer.flush()
    assert [config["acks"] for config in configs] == [STATE]
    assert {acks for acks, _, _ in journal} == {STATE}


def test_should_flush_outputs_before_state(recording):
    producer, _, journal = recording(Acks.LEADER)
    producer.flush()
    assert journal == [("1", "flush", None), (STATE, "flush", None)]


@pytest.mark.parametrize("short", ["1", STATE])
def test_should_abort_a_batch_when_outputs_or_state_are_not_acknowledged(recording, short):
    producer, _, journal = recording(Acks.LEADER, {short: 2})
    with pytest.raises(BatchAborted, match="2 records were not acknowledged"):
        producer.flush()
    assert {acks for acks, what, _ in journal if what == "purge"} == {"1", STATE}


@pytest.mark.parametrize("acks", list(Acks))
def test_should_create_a_client_with_these_settings(acks):
    producer = IdempotentProducer(NOWHERE, "app-0", 1000, 100, lambda _: None, acks, ["out"])
    producer.abort()


def test_should_reject_lower_acks_with_idempotence_in_the_client(monkeypatch):
    """Shows why outputs need their own client: a client has one `acks` setting, and state needs idempotence."""
    real = producer.Producer
    monkeypatch.setattr(producer, "Producer", lambda config: real({**config, "enable.idempotence": True}))
    with pytest.raises(KafkaException, match="acks"):
        IdempotentProducer(NOWHERE, "app-0", 1000, 100, lambda _: None, Acks.LEADER, ["out"])

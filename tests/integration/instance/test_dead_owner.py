"""A task whose last owner has died in an open transaction: the instance that gets the task ends it, and does not wait."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer
from tests.support.counting import CountingApp, Crash, crash_at, outputs

from tidemark.commit.producer import TransactionalProducer
from tidemark.commit.takeover import Takeover
from tidemark.errors import PreflightFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId, TopicPartition, group_instance_id
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(360)]


@pytest.fixture
def app(settings, admin, unique):
    """It has committed, and its transactions last longer than any test."""
    made = CountingApp(settings, admin, unique("dead"))
    # A broker of a busy machine may need longer than 15 seconds for an answer.
    made.settings = made.settings.model_copy(update={"transaction_timeout_ms": 600_000, "broker_timeout_ms": 60_000})
    made.feed(500)
    made.run()
    made.feed(500)
    return made


def die(app: CountingApp, point: str) -> None:
    with pytest.raises(Crash):
        app.run(crash_at(point))


@pytest.mark.parametrize("point", ["4-commit-records", "5-offsets"])
def test_should_get_the_tasks_of_an_instance_that_died_in_a_transaction(app, point):
    die(app, point)
    app.run(number=1)
    found = outputs(app)
    assert set(found.values()) == {1}
    assert {key: max(n for one, n in found if one == key) for key, _ in found} == app.expected


def test_should_wait_for_the_time_out_when_it_cannot_take_the_transactional_id_over(app, admin, monkeypatch, caplog):
    die(app, "4-commit-records")
    app.leave_group()

    def refuse(*_: object, **__: object) -> None:
        raise PreflightFailed("this user may not use that transactional id")

    monkeypatch.setattr(TransactionalProducer, "init", refuse)
    Takeover(app.plan, app.settings, librdkafka_config(app.settings), admin, EndOffsets(admin, 60)).of_dead_owners(
        [TaskId(0, 0)], 1
    )
    assert "is left to its time-out: this user may not" in caplog.text


def test_should_send_many_small_records_to_a_topic_that_accepts_no_large_batch(app, admin, create_topic, unique):
    """A command sends them to topics that it creates after it has taken the transactional id over."""
    ends = EndOffsets(admin, 60)
    producer = Takeover(app.plan, app.settings, librdkafka_config(app.settings), admin, ends).of(0, 10_000)
    place = TopicPartition(create_topic(unique("small"), max_message_bytes=str(16 << 10)), 0)
    producer.begin()
    producer.send_many(place.topic, [{"key": b"%d" % n, "value": b"v" * 900} for n in range(200)], 0)
    producer.flush()
    producer.commit()
    assert ends.of([place])[place] >= 200


def test_should_leave_the_transaction_of_an_instance_alone_that_is_in_the_group(app, admin):
    die(app, "4-commit-records")
    ends, place = EndOffsets(admin, 60), TopicPartition(f"{app.name}-n-changelog", 0)
    takeover = Takeover(app.plan, app.settings, librdkafka_config(app.settings), admin, ends)
    app.leave_group()
    config = {"bootstrap.servers": app.settings.bootstrap_servers, "group.id": app.name}
    member = Consumer({**config, "group.instance.id": group_instance_id(app.name, 0)})
    try:
        member.subscribe([f"{app.name}-in"])

        def has_joined() -> bool:
            member.poll(0.1)
            return bool(member.assignment())

        assert wait_until(has_joined, 60)
        takeover.of_dead_owners([TaskId(0, 0)], 1)
        assert ends.stable([place])[place] < ends.of([place])[place]
    finally:
        member.close()
    app._stopped.add(0)
    app.leave_group()
    takeover.of_dead_owners([TaskId(0, 0)], 0)
    assert ends.stable([place])[place] < ends.of([place])[place], "it has fenced itself"
    takeover.of_dead_owners([TaskId(0, 0)], 1)
    assert wait_until(lambda: ends.stable([place]) == ends.of([place]), 60)

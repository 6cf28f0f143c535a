"""Topics that a change creates: deleted after a failure, and kept when the change may have been committed."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.operations.change.test_repair import repair_of
from tests.integration.operations.change.test_rescale import rescale_of
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.operations.change.test_upgrade import (
    RENAMED,
    description,
    not_called,
    own_topics,
    renamed,
    upgrade_of,
)
from tests.support.changes import ChangingApp
from tests.support.counting import NO_PROBE
from tests.support.purging import purge

from tidemark.commit.producer import TransactionalProducer
from tidemark.errors import BatchAborted, OutcomeUnknown, PreflightFailed, StartRefused
from tidemark.kafka.topics import TopicSpec, ensure_user_topics, partition_counts
from tidemark.names import TopicPartition
from tidemark.operations.change.new_topics import NewTopics
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]

YES = lambda _plan: True  # noqa: E731


@pytest.fixture
def app(settings, admin, unique):
    """Create an application that has counted 1000 records of 200 keys and is stopped."""
    made = ChangingApp(settings, admin, unique("made"))
    made.said = []
    made.feed(1000)
    made.run()
    return made


def upgraded(app):
    app.become(renamed(app))
    return lambda probe: upgrade_of(app, probe, **RENAMED)


def rescaled(app):
    return lambda probe: rescale_of(app, 3, probe)


def set_back(app):
    return lambda probe: reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY, probe)


def repaired(app):
    purge(app.admin, app.settings, {TopicPartition(f"{app.name}-n-changelog", 0): 10})
    return lambda probe: repair_of(app, probe=probe)


CHANGES = [upgraded, rescaled, set_back, repaired]


def failing_at(point, error):
    def fail(at):
        if at == point:
            raise error

    return fail


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("point", "error"),
    [
        ("topics-made", OutcomeUnknown("no broker answers")),
        ("copied", OSError(28, "No space left on device")),
        ("switch-before-commit", KeyboardInterrupt()),
    ],
)
def test_should_leave_no_new_topic_when_a_change_fails(app, change, point, error):
    make, before = change(app), own_topics(app)
    with pytest.raises(type(error)):
        make(failing_at(point, error)).run(YES)
    assert wait_until(lambda: own_topics(app) == before, 60), own_topics(app) - before
    assert make(NO_PROBE).run(YES)
    assert own_topics(app) > before


@pytest.mark.parametrize("change", CHANGES)
def test_should_name_the_command_when_a_sink_was_deleted(app, change):
    make, sink = change(app), f"{app.name}-out"
    app.admin.delete_topics([sink])[sink].result(60)
    assert wait_until(lambda: sink not in own_topics(app), 60)
    before = own_topics(app)
    with pytest.raises(PreflightFailed, match=f"topics {sink} do not exist; .*`tidemark topics create NAME`"):
        make(not_called).run(YES)
    assert own_topics(app) == before
    ensure_user_topics(app.plan, app.settings, app.admin)
    assert make(NO_PROBE).run(YES)


@pytest.mark.parametrize("change", CHANGES)
def test_should_keep_the_new_topics_when_the_change_may_have_been_committed(app, change, monkeypatch):
    make, before = change(app), own_topics(app)
    commit = TransactionalProducer.commit

    def lose_the_answer(at):
        if at == "switch-before-commit":
            monkeypatch.setattr(TransactionalProducer, "commit", committed)

    def committed(producer):
        commit(producer)
        raise OutcomeUnknown("the answer is lost")

    with pytest.raises(OutcomeUnknown):
        make(lose_the_answer).run(YES)
    monkeypatch.undo()
    assert own_topics(app) > before
    assert make(NO_PROBE).run(YES), "a second run finds that it is done"
    assert own_topics(app) > before


def test_should_leave_no_new_topic_when_the_commit_is_aborted(app, monkeypatch):
    make, before = upgraded(app), own_topics(app)

    def aborted(producer):
        producer.abort()
        raise BatchAborted("aborted")

    def abort(at):
        if at == "switch-before-commit":
            monkeypatch.setattr(TransactionalProducer, "commit", aborted)

    with pytest.raises(BatchAborted):
        make(abort).run(YES)
    monkeypatch.undo()
    assert wait_until(lambda: own_topics(app) == before, 60)
    assert description(app).version == "1"


def test_should_not_delete_topics_that_others_created_meanwhile(app, unique):
    make, foreign = upgraded(app), unique("foreign")

    def come(at):
        if at == "topics-made":
            app.admin.create_topics([NewTopic(foreign, 1, 1)])[foreign].result(60)
            raise StartRefused("refused after the topics were made")

    before = own_topics(app)
    with pytest.raises(StartRefused):
        make(come).run(YES)
    assert wait_until(lambda: own_topics(app) == before, 60)
    assert foreign in partition_counts(app.admin, app.settings)


class Deleting:
    """An admin client whose deletions fail, although the controller answers."""

    def __init__(self, admin: AdminClient) -> None:
        self.describe_topics = admin.describe_topics

    def delete_topics(self, names, **_options):
        failed = Future()
        failed.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return dict.fromkeys(names, failed)


def test_should_name_the_topics_that_it_cannot_delete_and_keep_the_reason_of_the_failure(app, unique):
    said, specs = [], [TopicSpec(unique("left"), 1, {})]
    with (
        pytest.raises(OutcomeUnknown, match="no broker answers"),
        NewTopics(app.admin, app.settings, said.append) as topics,
    ):
        topics.create(specs)
        topics.create([TopicSpec(f"{app.name}-in", 1, {})])
        topics._admin = Deleting(app.admin)
        raise OutcomeUnknown("no broker answers")
    (line,) = said
    assert line.endswith(f"they may be deleted: {specs[0].name}"), "not a topic that was there before"

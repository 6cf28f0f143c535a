"""Topics of an application that are deleted, or deleted and created again, on a real broker."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.integration.operations.change.test_rescale import RescaledApp, rescale_of
from tests.integration.operations.change.test_reset import reset_of
from tests.support.changes import ChangingApp, version
from tests.support.counting import NO_PROBE, PARTITIONS
from tests.support.purging import purge

from tidemark.checks.durability_sampling import check_durability
from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed, StartRefused
from tidemark.instance import source_watch
from tidemark.kafka.cluster import topic_configs, topic_ids
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition
from tidemark.operations.change.repair import Repair
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.change.upgrade import Upgrade
from tidemark.operations.context import OperationContext
from tidemark.processes import wait_until
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.registry.reader import recorded, resolved_plan
from tidemark.registry.topic_identities import CHANGELOG_REMEDY
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400), pytest.mark.usefixtures("known_at_once")]

YES = lambda _plan: True  # noqa: E731


@pytest.fixture
def app(settings, admin, unique):
    """Create an application that has counted 1000 records of 200 keys and is stopped."""
    made = ChangingApp(settings, admin, unique("known"))
    made.feed(1000)
    made.run()
    assert made.counts() == made.expected
    return made


def existing(app):
    return partition_counts(app.admin, app.settings)


def delete(app, topic):
    """And wait until every broker knows."""
    app.admin.delete_topics([topic])[topic].result(60)
    assert wait_until(lambda: topic not in existing(app), 60)


def make_again(app, topic, partitions=PARTITIONS, **config):
    delete(app, topic)
    wanted = NewTopic(topic, partitions, 1, config=config)

    def made():
        try:
            app.admin.create_topics([wanted])[topic].result(60)
        except Exception:  # The old one may still be on its way out.
            return False
        return True

    assert wait_until(made, 60)
    assert wait_until(lambda: topic in existing(app), 60)


def set_policy(app, topic, policy):
    """As an operator would, by hand; it is known everywhere when this returns."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    app.admin.incremental_alter_configs([resource])[resource].result(60)
    assert wait_until(lambda: topic_configs(app.admin, [topic], app.settings)[topic]["cleanup.policy"] == policy, 60)


def description(app):
    return recorded(app.settings, app.admin, app.plan, existing(app))


def reset(app, to, state, given=None):
    return reset_of(app, to, state, given=given).run(YES)


def lose_the_disk(app):
    shutil.rmtree(app.state)


def seen(app):
    return {finding.subject: finding for finding in check_durability(app.plan, app.settings)}


def routed_offsets(app):
    """What the routers of a rescaled application have read."""
    consumer = Consumer({"bootstrap.servers": app.settings.bootstrap_servers, "group.id": app.name})
    try:
        asked = [ClientPartition(f"{app.name}-in", number) for number in range(4)]
        return {TopicPartition(p.topic, p.partition): p.offset for p in consumer.committed(asked, timeout=30)}
    finally:
        consumer.close()


def committed_offsets(app):
    return {
        TopicPartition(f"{app.name}-in", task.partition): record.end_offsets[f"{app.name}-in"]
        for task, record in app.last_records().items()
    }


def test_should_commit_the_ids_of_all_topics_and_start_again_with_them(app):
    topics = [f"{app.name}-{name}" for name in ("in", "out", "n-changelog", "commits", "dlq", "events")]
    assert description(app).topic_ids == topic_ids(app.admin, topics, app.settings)
    app.feed(100)
    app.run()
    assert app.counts() == app.expected


def test_should_refuse_an_up_to_date_store_whose_changelog_was_deleted_and_not_create_the_topic_again(app):
    changelog = f"{app.name}-n-changelog"
    known = description(app).topic_ids[changelog]
    delete(app, changelog)
    for _ in range(2):
        with pytest.raises(
            StartRefused, match=f"changelog {changelog} was deleted: this lost the store's contents"
        ) as no:
            app.run()
        assert "tidemark repair run NAME" in str(no.value)
        assert changelog not in existing(app)
    with pytest.raises(PreflightFailed, match=f"topic {changelog} was deleted"):
        preflight(resolved_plan(app.plan, app.settings, app.admin), app.settings, app.admin, {changelog: known})
    assert changelog not in existing(app)

    found = seen(app)["topic identities"]
    assert found.verdict is Verdict.FAILED
    assert f"changelog {changelog} was deleted" in found.message
    assert found.evidence["differing"] == {changelog: {"known": known, "found": None}}


def test_should_refuse_an_up_to_date_store_whose_changelog_was_created_again(app):
    changelog = f"{app.name}-n-changelog"
    make_again(app, changelog, **{"cleanup.policy": "compact"})
    with pytest.raises(StartRefused, match=f"changelog {changelog} was deleted and created again"):
        app.run()
    found = seen(app)
    assert (found[changelog].verdict, found["topic identities"].verdict) == (Verdict.FAILED, Verdict.FAILED)

    # The level store is the best there is, and says so; the changelog is of no use.
    context = OperationContext.of(app.plan, app.settings, (), wall_clock_ms)
    with pytest.raises(StartRefused, match=r"was created again|was deleted and created again"):
        context.evidence.candidates(next(iter(context.evidence.read().values())), SourceOfState.CHANGELOG)


def test_should_refuse_to_start_from_nothing_when_store_and_changelog_are_lost(app):
    delete(app, f"{app.name}-n-changelog")
    lose_the_disk(app)
    with pytest.raises(StartRefused, match="n-changelog was deleted"):
        app.run()
    with pytest.raises(StartRefused, match="tidemark repair run NAME"):
        reset(app, ResetTo.OFFSETS, StateAfter.KEEP, committed_offsets(app))
    assert reset(app, ResetTo.EARLIEST, StateAfter.EMPTY)
    app.run()
    assert app.counts() == app.expected


def test_should_refuse_a_source_that_was_created_again_until_its_offsets_are_reset(app):
    source = f"{app.name}-in"
    make_again(app, source)
    before = app.expected
    app.expected = Counter()
    app.feed(2000)
    with pytest.raises(StartRefused, match=f"source topic {source} was deleted and created again"):
        app.run()
    assert reset(app, ResetTo.EARLIEST, StateAfter.KEEP)
    app.run()
    assert app.counts() == before + app.expected


def test_should_commit_nothing_that_was_read_when_a_source_was_created_again(app, monkeypatch):
    """Offsets show nothing if the new topic has as many records as the old one."""
    monkeypatch.setattr(source_watch, "_LOOK_S", 0.0)
    source, counted, kept = f"{app.name}-in", app.counts(), app.expected.copy()

    class ReplacedSource(app.source):
        def next(self, timeout_s):
            batch = super().next(timeout_s)
            if batch is not None:
                make_again(app, source)
                app.feed(2000)
                self._stop.set()
            return batch

    app.feed(100)
    app.source = ReplacedSource
    with pytest.raises(OutcomeUnknown, match=f"source topic {source} was deleted and created again"):
        app.run()
    assert app.counts() == counted == kept


def test_should_record_the_new_id_of_a_sink_that_was_created_again(app, caplog):
    sink = f"{app.name}-out"
    known = description(app).topic_ids[sink]
    make_again(app, sink)
    app.feed(100)
    app.run()
    assert f"output topic {sink} was deleted and created again" in caplog.text
    now = description(app).topic_ids[sink]
    assert now != known
    assert now == topic_ids(app.admin, [sink], app.settings)[sink]
    assert app.counts() == app.expected


@pytest.mark.parametrize("is_made_again", [False, True])
def test_should_refuse_to_start_when_the_commits_topic_was_deleted(app, is_made_again):
    commits = f"{app.name}-commits"
    (make_again if is_made_again else delete)(app, commits)
    with pytest.raises(StartRefused, match=f"commits topic {commits} was deleted"):
        app.run()


@pytest.mark.parametrize("is_level", [True, False])
def test_should_refuse_a_changelog_whose_records_were_all_deleted(app, is_level):
    changelog = TopicPartition(f"{app.name}-n-changelog", 0)
    purge(app.admin, app.settings, {changelog: -1})
    assert wait_until(lambda: seen(app)[changelog.topic].verdict is Verdict.FAILED, 60)
    assert "partitions 0 have lost their beginning" in seen(app)[changelog.topic].message
    if not is_level:
        lose_the_disk(app)
    said = r"everything up to offset .* was deleted" if is_level else r"has lost its beginning|was deleted"
    with pytest.raises(StartRefused, match=said):
        app.run()


def test_should_refuse_a_changelog_whose_first_records_were_deleted_until_it_is_written_again(app):
    changelog = f"{app.name}-n-changelog"
    app.feed(1000)
    app.run()
    places = [TopicPartition(changelog, number) for number in range(PARTITIONS)]
    # The last records stay, so that there is nothing to see at the end of the topic.
    purge(app.admin, app.settings, {place: end - 5 for place, end in EndOffsets(app.admin, 60).of(places).items()})
    assert wait_until(lambda: seen(app)[changelog].verdict is Verdict.FAILED, 60)
    for _ in range(2):
        with pytest.raises(StartRefused, match=rf"{changelog}\[\d\] has lost its beginning, up to offset \d+") as no:
            app.run()
        assert CHANGELOG_REMEDY in str(no.value)
    assert app.counts() == app.expected
    app.leave_group()
    repair = Repair(app.plan, app.settings, wall_clock_ms, (), None, LoggingRestoreListener(), NO_PROBE, print)
    assert repair.run(YES)
    app.run()
    lose_the_disk(app)
    app.run()
    assert app.counts() == app.expected


def test_should_refuse_a_deleted_repartition_topic_until_it_is_accepted(settings, admin, unique):
    app = RescaledApp(settings, admin, unique("known"))
    app.feed(500)
    app.run()
    assert rescale_of(app, 3).run(YES)
    app.feed(500)
    app.run()
    between = f"{app.name}-source-{app.name}-in-1-repartition"
    delete(app, between)
    for _ in range(2):
        with pytest.raises(StartRefused, match=f"repartition topic {between} was deleted: this lost"):
            app.run()
        assert between not in existing(app)
    # All of it was read, so nothing is missing.
    work = reset_of(app, ResetTo.OFFSETS, StateAfter.KEEP, given=routed_offsets(app))
    assert work.show().accepted == (between,)
    assert work.run(YES)
    app.feed(500)
    app.run()
    assert app.counts() == app.expected


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_should_refuse_to_start_without_the_description_instead_of_assuming_the_first_changelogs(app, is_upgraded):
    if is_upgraded:
        app.become(version(app.name, "2", "n", n="count(*)", total="count(v)"))
        app.leave_group()
        upgrade = Upgrade(
            app.plan, app.settings, wall_clock_ms, (), (), ("n.total=0",), LoggingRestoreListener(), NO_PROBE, print
        )
        assert upgrade.run(YES)
        app.run()
    topology = f"{app.name}-topology"
    delete(app, topology)
    for _ in range(2):
        with pytest.raises(StartRefused, match=f"{topology} was deleted or emptied, but the application has run"):
            app.run()
        assert topology not in existing(app)
    (found,) = check_durability(app.plan, app.settings)
    assert (found.subject, found.verdict) == (topology, Verdict.FAILED)
    if is_upgraded:
        # Nor where the commits are gone with it: an upgrade's changelog tells.
        delete(app, f"{app.name}-commits")
        with pytest.raises(StartRefused, match=f"there is {app.name}-n-changelog-1"):
            app.run()

"""Repairs in combination with unlogged stores, windows, several copies, several stores and other changes."""

from __future__ import annotations

import shutil

import pytest
from tests.integration.instance.test_topic_identity import delete, lose_the_disk
from tests.integration.operations.change.test_repair import YES, changelog_of, not_asked, repair_of, strange
from tests.integration.operations.change.test_upgrade import upgrade_of
from tests.integration.operations.rewind.test_rewind import TASKS, last_records
from tests.integration.operations.rewind.test_rewind_stores import SecondsSource, in_windows, live_windows, windows_of
from tests.integration.restore.test_restore_run import SeenTwice, counts_of, restore
from tests.support.changes import ChangingApp, CountingAndSumming
from tests.support.counting import PARTITIONS, CountingApp
from tests.support.purging import purge

from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition
from tidemark.operations.savepoint import SavepointCommand
from tidemark.operations.workspace import RestoreState
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import opened
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480), pytest.mark.usefixtures("known_at_once")]


class Twice(CountingAndSumming, SeenTwice):
    """Each batch for two branches."""


def twice(name, number="1", **second):
    """Counts in the store `n`, and the same counts in another one, `m`."""
    topology = Topology(name, version=number)
    grouped = topology.stream(f"{name}-in", schema="id STRING, v BIGINT", key="id").group_by_key()
    grouped.count(name="n", store="n").to(f"{name}-out")
    grouped.count(name="n", store=Materialized("m", **second))
    return topology


def made(settings, admin, name, said, **second):
    app = ChangingApp(settings, admin, name)
    app.source, app.said = Twice, said
    app.become(twice(name, **second))
    app.feed(600)
    app.run()
    return app


@pytest.fixture
def said():
    """The lines that a repair reported."""
    return []


def second(app, task=0, instance=0):
    return app.settings.state_dir / str(instance) / app.name / f"0_{task}" / "rocksdb" / "m"


@pytest.mark.parametrize("order", ["repair upgrade", "upgrade repair", "upgrade upgrade"])
def test_should_keep_an_unlogged_store_through_several_changes_without_a_start_in_between(
    settings, admin, unique, said, order
):
    app, number = made(settings, admin, unique("unlogged"), said, logging=False), 1
    for step in order.split():
        if step == "repair":
            delete(app, changelog_of(app))
            assert repair_of(app).run(YES)
        else:
            number += 1
            app.become(twice(app.name, str(number), logging=False))
            assert upgrade_of(app).run(YES)
    app.run()
    assert counts_of(app, lambda task: second(app, task)) == app.expected
    app.feed(100)
    app.run()
    assert app.counts() == counts_of(app, lambda task: second(app, task)) == app.expected


def test_should_write_windows_again_when_the_start_of_their_changelog_was_purged(settings, admin, unique, said):
    app = CountingApp(settings, admin, unique("windows"), topology=in_windows, source=SecondsSource)
    app.said = said
    app.feed(1200, keys=40)
    app.run()
    app.feed(200, keys=40)
    app.run()

    def on_disk(task):
        return app.state / str(task) / "rocksdb" / "n"

    def live():
        ends = {task: record.end_offsets[f"{app.name}-in"] for task, record in last_records(app).items()}
        return live_windows(app, ends)

    assert windows_of(app, on_disk) == live()
    ends = {task: record.ends_before[changelog_of(app)][task.partition] for task, record in last_records(app).items()}
    purge(app.admin, app.settings, {TopicPartition(changelog_of(app), t.partition): end for t, end in ends.items()})
    asked = []
    assert repair_of(app, ["n"]).run(lambda plan: asked.append(plan) or True)
    lose_the_disk(app)
    app.run()
    assert windows_of(app, on_disk) == live()


def harm(folder):
    """Another value for a key, as if it had been read from a changelog with a stranger's record."""
    with opened(folder) as store:
        key, value = next(iter(store.items(WHOLE)))
        store.put_many([Writes(WHOLE, [key], [bytes(len(value))])], store.checkpoint, None)
        return key, bytes(len(value))


@pytest.mark.parametrize("last", [0, 1])
def test_should_leave_no_other_up_to_date_copy_that_differs(settings, admin, unique, said, last):
    app = ChangingApp(settings, admin, unique("copies"))
    app.said = said
    app.feed(1000)
    app.run(number=last)
    right, other = app.settings.state_dir / str(last) / app.name, app.settings.state_dir / str(1 - last) / app.name
    shutil.copytree(right, other)
    written = [(task, *harm(other / f"0_{task}" / "rocksdb" / "n")) for task in range(PARTITIONS)]
    strange(app, *written)
    assert repair_of(app, ["n"]).run(YES)
    app.run(number=1 - last)
    app.feed(300)
    app.run(number=1 - last)

    def folder(task):
        return other / f"0_{task}" / "rocksdb" / "n"

    assert counts_of(app, folder) == app.expected


def test_should_repair_one_store_after_another_from_an_up_to_date_savepoint(settings, admin, unique, said, tmp_path):
    app = made(settings, admin, unique("saved"), said)
    app.settings = app.settings.model_copy(update={"savepoint_location": str(tmp_path / "savepoints")})
    SavepointCommand(app.plan, app.settings, app.admin, TASKS, lambda _copied: None, wall_clock_ms).take()
    for store in ("n", "m"):
        delete(app, f"{app.name}-{store}-changelog")
    lose_the_disk(app)
    assert repair_of(app, ["n"]).run(YES)
    assert repair_of(app).run(YES)
    app.run()
    assert app.counts() == counts_of(app, lambda task: second(app, task)) == app.expected


def test_should_leave_the_lost_changelog_of_another_store_as_it_is(settings, admin, unique, said):
    app = made(settings, admin, unique("lost"), said)
    other = f"{app.name}-m-changelog"
    ended = {task: ends_of(record, other) for task, record in last_records(app).items()}
    for topic in (changelog_of(app), other):
        delete(app, topic)
    assert repair_of(app, ["n"]).run(YES)
    assert other not in partition_counts(app.admin, app.settings)
    for task, record in last_records(app).items():
        assert ends_of(record, other) == ended[task], "a standby is compared with it when the other store is repaired"
    with pytest.raises(StartRefused, match=f"{other} was deleted: "):
        app.run()
    assert repair_of(app).run(YES)
    app.run()
    assert app.counts() == counts_of(app, lambda task: second(app, task)) == app.expected


def ends_of(record, changelog):
    """The end of a task's changelog after its last commit."""
    return record.ends_before[changelog][record.task.partition] + record.changelogs.get(changelog, 0)


def test_should_refuse_a_repair_when_the_store_is_wrong_and_not_the_changelog(settings, admin, unique, said, tmp_path):
    """The requested source agrees with the changelog, so it is the live store that is wrong."""
    app = ChangingApp(settings, admin, unique("wrong"))
    app.settings = app.settings.model_copy(update={"savepoint_location": str(tmp_path / "savepoints")})
    app.said = said
    app.feed(1000)
    app.run()
    SavepointCommand(app.plan, app.settings, app.admin, TASKS, lambda _copied: None, wall_clock_ms).take()
    harm(app.store_folder(1))
    with pytest.raises(StartRefused, match="`tidemark restore run NAME --from changelog`"):
        repair_of(app, ["n"], SourceOfState.SAVEPOINT).run(not_asked)


def test_should_not_roll_a_restore_back_to_folders_from_before_a_later_repair(settings, admin, unique, said):
    app = ChangingApp(settings, admin, unique("behind"))
    app.said = said
    app.feed(1000)
    app.run()
    harmed = harm(app.store_folder(0))
    _, workspace, run = restore(app, SourceOfState.CHANGELOG)
    strange(app, (0, *harmed))
    assert repair_of(app, ["n"]).run(YES)
    with pytest.raises(StartRefused, match=f"changelog {changelog_of(app)} was repaired after it") as refused:
        run.roll_back()
    assert "`tidemark restore run NAME`" in str(refused.value)
    assert workspace.progress().state is RestoreState.DONE
    app.run()
    assert counts_of(app) == app.expected


def test_should_roll_a_restore_back_across_a_repair_once_its_tail_is_read(settings, admin, unique, said):
    app = ChangingApp(settings, admin, unique("tail"))
    app.said = said
    app.feed(1000)
    app.run()
    _, _, run = restore(app, SourceOfState.CHANGELOG)
    with opened(app.store_folder(0)) as store:
        key, value = next(iter(store.items(WHOLE)))
    strange(app, (0, key, bytes(len(value))))
    assert repair_of(app, ["n"]).run(YES)
    app.feed(300)
    app.run()
    assert run.roll_back().state is RestoreState.ROLLED_BACK
    app.run()
    assert counts_of(app) == app.expected

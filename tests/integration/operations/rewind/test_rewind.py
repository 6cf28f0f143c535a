"""Inspecting and rewinding a real application on a real broker: earlier counts, kills at each step, refusals."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from itertools import pairwise

import pytest
from confluent_kafka import TopicPartition
from tests.integration.operations.change.test_reset import reset_of
from tests.integration.restore.test_restore_run import counts_of
from tests.support.counting import (
    NO_PROBE,
    PARTITIONS,
    CountingApp,
    Crash,
    Elsewhere,
    come_to,
    committed,
    crash_at,
    outputs,
)
from tests.support.truth.topics import end_offsets
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.history import commit_history, last_commit_records
from tidemark.commit.record import CommitKind
from tidemark.errors import PreflightFailed, StartRefused, TaskLocked
from tidemark.instance.assembly import make_instance
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources, past_sources
from tidemark.operations.evidence_reader import EvidenceReader
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.rewind.build import PointInTimeBuilder
from tidemark.operations.rewind.rewind import REWINDS_FOLDER, Rewind
from tidemark.operations.workspace import RestoreState, Workspace, new_id
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.stores.directory import folder_of
from tidemark.temporary_folder import TEMPORARY_FOLDER

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

TASKS = [TaskId(0, number) for number in range(PARTITIONS)]
YES = lambda _plan: True  # noqa: E731


@pytest.fixture
def app(settings, admin, unique):
    """1000 records of 100 keys committed, `then_ms`, `then`; after it 1500 records of 200 keys. Nothing runs."""
    made = CountingApp(settings, admin, unique("rewound"))
    made.settings = made.settings.model_copy(update={"savepoint_location": str(settings.var_dir / "savepoints")})
    made.feed(1000, keys=100)
    made.run()
    made.then_ms, made.then = last_commit_ms(made), Counter(made.expected)
    made.feed(1500, keys=200)
    made.run()
    return made


def last_records(app):
    client = {"bootstrap.servers": app.settings.bootstrap_servers}
    return last_commit_records(client, EndOffsets(app.admin, 60), app.name, TASKS, stalled_after_s=60)


def last_commit_ms(app):
    return max(record.commit_time_ms for record in last_records(app).values())


def builder_of(app, probe=NO_PROBE, said=None):
    context = OperationContext.of(app.plan, app.settings, past_sources(app.plan, app.settings), wall_clock_ms)
    return PointInTimeBuilder(context, LoggingRestoreListener(), probe, (said if said is not None else []).append)


def rewind_of(app, probe=NO_PROBE, said=None):
    app.leave_group()
    workspace = Workspace(app.settings.state_dir, app.name, new_id(), REWINDS_FOLDER)
    said = said if said is not None else []
    return Rewind(builder_of(app, probe, said), workspace, probe, said.append)


def rewind(app, probe=NO_PROBE, said=None, at_ms=None):
    return rewind_of(app, probe, said).run(app.then_ms if at_ms is None else at_ms, YES)


# --- inspect


def past_counts(app, at_ms, tmp_path, probe=NO_PROBE, said=None):
    folder = tmp_path / f"past-{time.time_ns()}"
    built = builder_of(app, probe, said).build(at_ms, folder)
    return counts_of(app, lambda number: folder_of(folder, TaskId(0, number), "n")), built


def test_should_show_the_counts_of_then_and_change_nothing(app, tmp_path):
    found, built = past_counts(app, app.then_ms, tmp_path)
    assert found == app.then
    assert {state.point_in_time.record.commit_time_ms <= app.then_ms for state in built.values()} == {True}
    assert past_counts(app, wall_clock_ms(), tmp_path)[0] == app.expected
    assert counts_of(app) == app.expected


def test_should_show_the_present_of_an_application_that_commits_meanwhile(app, tmp_path):
    """A batch that is committed while the copy is built must be in the copy as a whole or not at all."""
    ran = []

    def commit_once(point):
        if point == "point-in-time-built" and not ran:
            ran.append(point)
            app.feed(300)
            app.run()

    before = Counter(app.expected)
    found, _ = past_counts(app, wall_clock_ms(), tmp_path, commit_once)
    assert ran
    assert found == before
    assert app.expected != before


def test_should_build_again_when_the_chosen_end_includes_a_later_batch(app, tmp_path, monkeypatch):
    """A batch whose commit is in progress lies below the read_uncommitted end and is visible when it is read."""
    asked_ms, before = wall_clock_ms(), Counter(app.expected)
    made = builder_of(app)
    facts = EvidenceReader.facts
    late = []

    def facts_with_a_later_end(reader):
        if not late:
            late.append(True)
            app.feed(300)
            app.run()
        return facts(reader)

    monkeypatch.setattr(EvidenceReader, "facts", facts_with_a_later_end)
    folder = tmp_path / "past"
    made.build(asked_ms, folder)
    assert counts_of(app, lambda number: folder_of(folder, TaskId(0, number), "n")) == before


def test_should_refuse_a_time_before_the_first_commit(app, tmp_path):
    with pytest.raises(StartRefused, match="no commit record is as old"):
        past_counts(app, app.then_ms - 3_600_000, tmp_path)


def test_should_print_rows_as_json(app, tmp_path, monkeypatch):
    app.for_commands(tmp_path, monkeypatch)

    def inspect(*options):
        done = CliRunner().invoke(build(), ["inspect", "made_counting", "--json", *options])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    shown = inspect("--at", str(app.then_ms), "--limit", "0", "--out", str(tmp_path / "kept"))
    assert {row["key"]: row["value"]["n"] for row in shown["rows"]} == app.then
    assert sum(task["source_offsets"][f"{app.name}-in"] for task in shown["tasks"]) >= 1000
    assert counts_of(app, lambda number: folder_of(tmp_path / "kept", TaskId(0, number), "n")) == app.then
    (row,) = inspect("--key", "k00150", "--store", "n")["rows"]
    assert row["value"] == {"n": app.expected["k00150"]}
    assert {row["key"] for row in inspect("--prefix", "k0000")["rows"]} == {f"k0000{n}" for n in range(10)}
    assert len(inspect("--limit", "3")["rows"]) == 3 * PARTITIONS
    summary = CliRunner().invoke(build(), ["inspect", "made_counting", "--key", "k00150"])
    assert summary.exit_code == 0
    line = next(line for line in summary.stdout.splitlines() if "k00150" in line)
    assert line.split()[-1] == str(app.expected["k00150"])
    for wrong in (["--store", "other"], ["--at", "yesterday"], ["--out", str(tmp_path)]):
        assert CliRunner().invoke(build(), ["inspect", "made_counting", *wrong]).exit_code != 0


@pytest.mark.parametrize("command", [["inspect"], ["rewind", "plan", "--to"]])
def test_should_build_nothing_when_there_is_too_little_space(app, tmp_path, monkeypatch, command):
    app.for_commands(tmp_path, monkeypatch)
    asked, usage = [], shutil.disk_usage(app.settings.state_dir)

    def full(folder):
        asked.append(folder)
        return usage._replace(free=1)

    monkeypatch.setattr("tidemark.operations.disk_space.shutil.disk_usage", full)
    options = ["made_counting", *command[2:], *([str(app.then_ms)] if command[2:] else [])]
    done = CliRunner().invoke(build(), [*command[:2], *options], terminal_width=200)
    assert isinstance(done.exception, PreflightFailed), done.output
    assert "but 1 are free" in str(done.exception)
    scratch = app.settings.state_dir / TEMPORARY_FOLDER / f"{app.name}-{command[0]}"
    assert asked[0].is_relative_to(scratch)
    assert [path for path in scratch.iterdir() if path.is_dir()] == []


# --- rewind


def test_should_plan_without_changing_anything(app):
    before, records = committed(app), last_records(app)
    plan = rewind_of(app).plan(app.then_ms)
    assert sum(store.deleted for store in plan.stores) == len(app.expected) - len(app.then)
    assert sum(store.written for store in plan.stores) == sum(app.expected[key] != n for key, n in app.then.items())
    assert sum(task.offsets_again for task in plan.tasks) >= 1500
    assert "emitted again" in plan.warning
    assert f"{app.name}-out" in plan.warning
    assert (committed(app), last_records(app), counts_of(app)) == (before, records, app.expected)


def test_should_bring_back_state_and_offsets_and_continue_from_there(app):
    emitted = outputs(app)
    assert rewind(app)
    assert counts_of(app) == app.then
    records = last_records(app)
    assert {record.kind for record in records.values()} == {CommitKind.REWIND}
    assert come_to(app, [records[task].end_offsets[f"{app.name}-in"] for task in TASKS])
    assert outputs(app) == emitted
    app.run()
    assert counts_of(app) == app.expected
    again = outputs(app) - emitted
    # Each key that came after that time reached its last count twice.
    assert {key for (key, n) in again if n == app.expected[key]} == {
        key for key, n in app.expected.items() if n != app.then[key]
    }


def test_should_hold_the_same_in_the_changelogs_as_on_disk(app):
    rewind(app)
    shutil.rmtree(app.settings.state_dir)
    app.run()
    assert counts_of(app) == app.expected


def test_should_process_what_came_before_the_rewind_was_run(app):
    app.feed(400, keys=300)
    rewind(app)
    assert counts_of(app) == app.then
    app.run()
    assert counts_of(app) == app.expected


def test_should_inspect_and_rewind_across_a_rewind(app, tmp_path):
    before_ms, before = wall_clock_ms(), Counter(app.expected)
    rewind(app)
    app.feed(200)
    app.run()
    assert past_counts(app, before_ms, tmp_path)[0] == before
    assert past_counts(app, app.then_ms, tmp_path)[0] == app.then
    rewind(app)
    assert counts_of(app) == app.then
    app.run()
    assert counts_of(app) == app.expected


def test_should_change_nothing_when_killed_before_the_commit(app):
    before = committed(app)
    with pytest.raises(Crash):
        rewind(app, crash_at("rewind-before-commit"))
    assert (committed(app), counts_of(app)) == (before, app.expected)
    app.feed(300)
    app.run()
    assert counts_of(app) == app.expected
    assert rewind(app)
    assert counts_of(app) == app.then


@pytest.mark.parametrize("point", ["rewind-committed", "rewind-verified", "swap-between", "swap-one"])
def test_should_finish_when_run_again_after_a_kill_between_commit_and_swap(app, point):
    with pytest.raises(Crash):
        rewind(app, crash_at(point))
    records, said = last_records(app), []
    # Another time is asked for: what was begun comes first.
    assert rewind(app, said=said, at_ms=app.then_ms + 1)
    assert any("not finished" in line for line in said)
    assert last_records(app) == records
    assert counts_of(app) == app.then
    app.run()
    assert counts_of(app) == app.expected


def test_should_be_refused_at_a_start_and_repaired_by_a_restore_when_killed_before_the_swap(app):
    with pytest.raises(Crash):
        rewind(app, crash_at("rewind-committed"))
    with pytest.raises(StartRefused, match="tidemark restore run"):
        app.run()
    context = OperationContext.of(app.plan, app.settings, copy_sources(app.plan, app.settings), wall_clock_ms)
    plan = make_plan(context.evidence, new_id(), None)
    workspace = Workspace(app.settings.state_dir, app.name, plan.restore_id)
    workspace.create(plan)
    done = RestoreRun(context, workspace, LoggingRestoreListener(), NO_PROBE, [].append).run()
    assert done.state is RestoreState.DONE
    assert counts_of(app) == app.then
    app.run()
    assert counts_of(app) == app.expected


def test_should_be_finished_before_another_command_changes_the_application(app):
    with pytest.raises(Crash):
        rewind(app, crash_at("rewind-committed"))
    with pytest.raises(StartRefused, match="tidemark rewind run NAME"):
        reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(YES)
    assert rewind(app)
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(YES)


def test_should_not_be_waited_for_by_another_command_when_it_has_not_committed(app):
    with pytest.raises(Crash):
        rewind(app, crash_at("rewind-before-commit"))
    assert reset_of(app, ResetTo.EARLIEST, StateAfter.EMPTY).run(YES)


def test_should_forget_an_unfinished_rewind_when_the_application_has_continued(app):
    with pytest.raises(Crash):
        rewind(app, crash_at("rewind-committed"))
    shutil.rmtree(app.state)
    app.run()
    assert counts_of(app) == app.expected
    assert rewind(app)
    assert counts_of(app) == app.then


def test_should_replace_the_live_folder_and_every_stale_one(app):
    state_dir = app.settings.state_dir
    shutil.copytree(state_dir / "0", state_dir.with_name("stale"))
    app.feed(200)
    app.run(number=1)
    held = [state_dir / holder / app.name for holder in ("0", "1", "standby-0")]
    for task in TASKS:
        for holder in (held[0], held[2]):
            shutil.copytree(state_dir.with_name("stale") / app.name / str(task), holder / str(task))
    assert rewind(app)
    for task in TASKS:
        assert [(holder / str(task)).exists() for holder in held] == [False, True, False]
    assert counts_of(app, lambda number: folder_of(held[1], TaskId(0, number), "n")) == app.then
    app.run()
    assert counts_of(app) == app.expected


def test_should_keep_the_replaced_folders(app):
    (app.state / "0_0" / "witness").write_text("old")
    made = rewind_of(app)
    made.run(app.then_ms, YES)
    assert (made.workspace.previous / "0" / "0_0" / "witness").read_text() == "old"


def test_should_change_nothing_when_the_answer_is_no(app):
    made, before = rewind_of(app), committed(app)
    assert not made.run(app.then_ms, lambda _plan: False)
    assert (committed(app), counts_of(app)) == (before, app.expected)
    assert not made.workspace.folder.exists()


def test_should_refuse_when_nothing_has_happened_since(app):
    with pytest.raises(StartRefused, match="nothing to rewind"):
        rewind(app, at_ms=wall_clock_ms())


def test_should_refuse_while_an_instance_runs(app):
    instance = make_instance(app.plan, app.settings, 0, "counting", NO_PROBE)
    try:
        with pytest.raises(TaskLocked, match="pause its DAG"):
            rewind(app)
    finally:
        instance.close(None)


def test_should_refuse_when_a_member_joins_during_the_rewind(app):
    elsewhere, before = Elsewhere(app), committed(app)

    def join(point):
        if point == "point-in-time-built":
            elsewhere.join_group()

    try:
        with pytest.raises(PreflightFailed, match=f"{app.name}-3 .* joined the group"):
            rewind(app, join)
    finally:
        elsewhere.leave()
    assert committed(app) == before


def test_should_refuse_a_time_whose_source_records_are_deleted(app):
    place = TopicPartition(f"{app.name}-in", 0, committed(app)[0])
    app.admin.delete_records([place])[place].result()
    with pytest.raises(StartRefused, match="deleted and cannot be read again"):
        rewind(app)


def test_should_leave_commit_records_that_the_history_reads_in_order(app):
    rewind(app)
    app.run()
    client = {"bootstrap.servers": app.settings.bootstrap_servers}
    history = list(commit_history(client, EndOffsets(app.admin, 60), app.name, TASKS, stalled_after_s=60))
    for task in TASKS:
        own = [record for record in history if record.task == task]
        assert [record.batch for record in own] == list(range(own[0].batch, own[0].batch + len(own)))
        back = next(record for record in own if record.kind is CommitKind.REWIND)
        then = next(record for record in own if record.batch == back.rewound_to)
        assert back.end_offsets == then.end_offsets
        for one, following in pairwise(own):
            starts = {topic: spans[task.partition][0] for topic, spans in following.sources.items()}
            assert starts == one.end_offsets
    ends = end_offsets(
        app.settings.bootstrap_servers, [(f"{app.name}-in", n) for n in range(PARTITIONS)], "read_committed"
    )
    assert committed(app) == [ends[f"{app.name}-in", n] for n in range(PARTITIONS)]

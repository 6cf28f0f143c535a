"""Each step of a restore on a real broker: killed and run again, rolled back, and refused when it must be."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest
from tests.integration.operations.rewind.test_rewind import YES, rewind_of
from tests.integration.restore.test_restore_run import counts_of
from tests.support.counting import NO_PROBE, CountingApp, Crash
from tests.support.purging import purge
from tests.system.oncall.approving import answered

from tidemark.clock import wall_clock_ms
from tidemark.errors import OutcomeUnknown, PreflightFailed, StartRefused, TaskLocked
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.case import restore_steps
from tidemark.operations.case.approval import PlanApproval
from tidemark.operations.case.case import RESTORE, Case, CaseFolder
from tidemark.operations.case.drain import drain
from tidemark.operations.case.plan import PlanKind
from tidemark.operations.case.plan_hash import plan_hash
from tidemark.operations.case.report import CaseOutcome, outcome_of
from tidemark.operations.case.restore_steps import FASTEST, OnCall
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import copy_sources, past_sources
from tidemark.operations.restore.run import RestoreRun, make_plan
from tidemark.operations.workspace import RestoreState, Workspace, new_id, workspaces
from tidemark.recovery.selection import Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.local_copies import LocalCopies, read_store_checkpoint
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.supervision.hold import Hold, take_hold

pytestmark = [pytest.mark.broker, pytest.mark.timeout(480)]


@pytest.fixture
def app(settings, admin, unique):
    """Create a stopped application with two partitions and 50 keys, in which everything is committed."""
    made = CountingApp(settings, admin, unique("counting"))
    made.feed(1000, keys=50)
    made.run()
    return made


class Approved(OnCall):
    """Somebody approves each plan as soon as it is made."""

    def plan(self):
        planned = super().plan()
        answered(self.folder, self.restoring.clients.settings)
        return planned


def call_of(app, target="latest", source=FASTEST, probe=NO_PROBE, case_id=None, tasks=(), stores=()):
    """A case that was asked for just now."""
    app.leave_group()
    case_id = case_id or new_id()
    folder = CaseFolder.of(app.settings.var_dir, app.name, case_id, wall_clock_ms)
    asked = {"source": source, "tasks": list(tasks), "stores": list(stores), "target": target}
    folder.open(Case(case_id, RESTORE, "made", app.name, asked, False, "a | <b>", wall_clock_ms(), "run-1"))
    contexts = (
        OperationContext.of(app.plan, app.settings, find(app.plan, app.settings), wall_clock_ms)
        for find in (copy_sources, past_sources)
    )
    return Approved(*contexts, folder, LoggingRestoreListener(), probe, [].append)


def everything(folder):
    """Every file below, with its bytes; locks and RocksDB's own logs left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "LOCK", "LOG") and not path.name.startswith("LOG.")
    }


def crash_at(*points):
    """A probe that crashes the first time it passes each point, and the points that are still to come."""
    left = set(points)

    def crash(at):
        if at in left:
            left.remove(at)
            raise Crash

    return crash, left


def test_should_plan_without_changing_anything_and_summarise_what_it_would_do(app):
    before = everything(app.settings.state_dir)
    call = call_of(app)
    call.preflight()
    planned = call.plan()
    assert everything(app.settings.state_dir) == before
    assert workspaces(app.settings.state_dir, app.name) == []
    assert planned.kind is PlanKind.RESTORE
    assert f"nothing new in {app.name}-out meanwhile" in planned.summary
    assert "2 task folders" in planned.summary
    assert "| 0_1 | n | local |" in planned.summary
    assert r"a \| &lt;b>" in planned.summary


def test_should_restore_the_selected_store_and_bind_the_approval_to_that_selection(app):
    for task in ("0_0", "0_1"):
        (app.state / task / "witness").touch()
    inodes = [app.store_folder(number).stat().st_ino for number in (0, 1)]
    call = call_of(app, source="changelog", tasks=["0_1"], stores=["n"])
    call.preflight()
    planned = call.plan()
    assert "1 store folders (0_1/n); every other store of these tasks keeps what it holds" in planned.summary
    assert "- **Tasks**: `0_1`" in planned.summary
    assert planned.content["effects"]["selection"] == {"tasks": ["0_1"], "stores": ["n"]}
    assert [store["task"] for store in planned.plan["stores"]] == ["0_1"]
    everything_planned = call_of(app, source="changelog").plan()
    assert plan_hash(everything_planned.content | {"options": {}}) != plan_hash(planned.content | {"options": {}})
    call.restore()
    call.verify()
    call.swap()
    assert [figures["task"] for figures in call.figures()] == ["0_1"]
    assert all((app.state / task / "witness").exists() for task in ("0_0", "0_1"))
    assert [app.store_folder(number).stat().st_ino == inodes[number] for number in (0, 1)] == [True, False]
    assert counts_of(app) == app.expected


@pytest.mark.parametrize(("tasks", "stores"), [(["0_1"], []), ([], ["n"])])
def test_should_not_rewind_a_part_of_the_state(app, tasks, stores):
    call = call_of(app, target="-1m", tasks=tasks, stores=stores)
    for step in (call.preflight, call.plan):
        with pytest.raises(StartRefused, match="all tasks go back together"):
            step()


@pytest.mark.parametrize(
    ("asked", "said"), [({"tasks": ["0_9"]}, "its tasks are 0_0, 0_1"), ({"stores": ["x"]}, "are n")]
)
def test_should_refuse_an_unknown_task_or_store_before_anything_is_stopped(app, asked, said):
    with pytest.raises(StartRefused, match=said):
        call_of(app, **asked).preflight()


def test_should_reach_the_same_end_when_each_step_is_killed_and_run_again(app):
    shutil.rmtree(app.settings.state_dir)
    probe, left = crash_at("restore-whole", "restore-built", "swap-between", "swap-one")
    call = call_of(app, probe=probe)
    call.preflight()
    call.plan()
    for step in (call.restore, call.verify, call.swap):
        while True:
            try:
                step()
                break
            except Crash:
                continue
        # A task may be killed after its last act as well.
        step()
    assert left == set()
    assert counts_of(app) == app.expected
    figures = next(note.figures for note in call.folder.notes() if note.what == "figures")
    assert (figures["keys"], figures["rpo_offsets"]) == (len(app.expected), 0)
    assert (figures["left_out"], figures["differing"], figures["evidence"]) == (0, 0, "ok")
    assert sum(store["compared"] for store in call.figures()) == len(app.expected)
    app.feed(200, keys=50)
    app.run()
    drain(call.restoring.evidence, 60, call.report)
    assert counts_of(app) == app.expected


def test_should_bring_the_old_state_back_from_wherever_it_failed(app):
    before = counts_of(app)
    for reached in (0, 1, 2):
        call = call_of(app)
        call.plan()
        for step in (call.restore, call.verify)[:reached]:
            step()
        summary = call.roll_back()
        assert counts_of(app) == before
        assert call.roll_back() == summary or reached
        assert ("nothing was begun" in summary) == (reached == 0)
    call = call_of(app, probe=crash_at("swap-one")[0])
    (app.state / "0_0" / "witness").write_text("old")
    call.plan()
    call.restore()
    with pytest.raises(Crash):
        call.swap()
    assert not (app.state / "0_0" / "witness").exists()
    assert "back in place" in call.roll_back()
    assert (app.state / "0_0" / "witness").read_text() == "old"
    assert all(w.progress().state in (RestoreState.ROLLED_BACK, RestoreState.ABORTED) for w in _workspaces(app))
    app.feed(100, keys=50)
    app.run()
    assert counts_of(app) == app.expected


def test_should_roll_back_only_once_the_restore_that_still_runs_has_ended(app, monkeypatch):
    reached, goes_on = threading.Event(), threading.Event()

    def stand_still(at):
        if at == "restore-whole":
            reached.set()
            goes_on.wait(120)

    before = counts_of(app)
    call = call_of(app, source="changelog", probe=stand_still)
    call.plan()
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(call.restore)
        try:
            assert reached.wait(120)
            monkeypatch.setattr(restore_steps, "_ENDS_WITHIN_S", 0.1)
            with pytest.raises(TaskLocked, match="nothing is rolled back yet"):
                call.roll_back()
            assert _workspaces(app)[0].progress().state is RestoreState.BUILDING
        finally:
            goes_on.set()
        monkeypatch.setattr(restore_steps, "_ENDS_WITHIN_S", 120.0)
        assert "the old state is in place" in call.roll_back()
        with pytest.raises(StartRefused, match="was aborted"):
            left.result()
    assert _workspaces(app)[0].progress().state is RestoreState.ABORTED
    assert counts_of(app) == before


@pytest.mark.parametrize("killed", [False, True])
def test_should_keep_a_restored_state_when_a_later_step_fails_or_is_repeated(app, killed):
    """`killed` means between the swap and the note that the case is done."""
    shutil.rmtree(app.settings.state_dir)
    call = call_of(app)
    call.plan()
    call.restore()
    call.verify()
    if killed:
        call._restore_run().swap()
    else:
        call.swap()
    before = everything(app.settings.state_dir)
    assert "it is kept, nothing is rolled back" in call.roll_back()
    for step in (call.preflight, lambda: OnCall.plan(call), call.restore, call.verify, call.swap, call.roll_back):
        step()
    assert approval_of(call).is_done
    assert everything(app.settings.state_dir) == before
    assert counts_of(app) == app.expected


def _workspaces(app):
    return workspaces(app.settings.state_dir, app.name)


def test_should_notice_an_instance_that_ran_between_the_steps(app):
    call = call_of(app)
    call.plan()
    call.restore()
    app.feed(50, keys=50)
    app.run()
    with pytest.raises(StartRefused, match="50 source offsets were committed after the state was built"):
        call.verify()


def test_should_notice_a_batch_without_offsets_that_was_committed_between_the_steps(app):
    """Such as that of a tick."""
    call = call_of(app)
    call.plan()
    call.restore()
    with opened(folder_of(call._workspace.built, TaskId(0, 1), "n")) as store:
        store.put_many([], replace(store.checkpoint, batch=store.checkpoint.batch - 1), None)
    with pytest.raises(
        StartRefused, match=r"0 source offsets .*the last batch is not in 0_1/n: an instance ran meanwhile"
    ):
        call.verify()


@pytest.mark.parametrize(
    ("kind", "older"), [(SourceOfState.STANDBY, {"batch": -1, "source_offsets": {}}), (SourceOfState.SAVEPOINT, None)]
)
def test_should_restore_from_a_copy_that_has_the_whole_changelog_but_not_the_last_commit(app, kind, older):
    """A standby's copy names no batch; a savepoint names its own one, although later batches did not change the store."""
    facts = call_of(app).restoring.evidence.facts()
    copies = app.settings.state_dir.with_name("copies")
    shutil.copytree(app.settings.state_dir, copies)
    for task, found in facts.items():
        with opened(folder_of(copies / "0" / app.name, task, "n")) as store:
            held = store.checkpoint
            earlier = {"batch": held.batch - 1, "source_offsets": {t: at - 1 for t, at in held.source_offsets.items()}}
            at_end = replace(held, changelog_offset=found.changelogs["n"].end, **(older or earlier))
            store.put_many([], at_end, None)
    found_here = LocalCopies(copies, app.name, kind)
    context = OperationContext.of(app.plan, app.settings, [found_here], wall_clock_ms)
    call = replace(call_of(app), restoring=context)
    planned = call.plan()
    assert {store["source"] for store in planned.plan["stores"]} == {kind.value}
    call.restore()
    call.verify()
    call.swap()
    for task in facts:
        assert read_store_checkpoint(folder_of(app.state, task, "n")).batch == facts[task].record.batch
    assert counts_of(app) == app.expected


def test_should_refuse_an_approved_restore_when_another_was_killed_in_its_swap_meanwhile(app):
    """The approved one would delete the only folders of the other's task."""
    call = call_of(app, source="changelog", tasks=["0_1"])
    call.preflight()
    call.plan()
    context, selection = call.restoring, Selection.of(["0_0"], [])
    made = make_plan(context.evidence, new_id(), SourceOfState.CHANGELOG, selection)
    left = Workspace(app.settings.state_dir, app.name, made.restore_id)
    left.create(made)
    killed = RestoreRun(context, left, LoggingRestoreListener(), crash_at("swap-between")[0], [].append)
    with pytest.raises(Crash):
        killed.run()
    with pytest.raises(StartRefused, match=f"restore {made.restore_id} is swapping: finish it with"):
        call.restore()
    assert "the old state is in place" in call.roll_back()
    assert killed.run().state is RestoreState.DONE
    assert counts_of(app) == app.expected


def test_should_put_a_state_in_place_that_the_changelog_cannot_prove_but_not_end_as_wanted(app):
    facts = call_of(app).restoring.evidence.facts()
    ends = {
        TopicPartition(f"{app.name}-n-changelog", task.partition): f.changelogs["n"].end for task, f in facts.items()
    }
    purge(app.admin, app.settings, ends)
    call = call_of(app, source="local")
    call.plan()
    for name, step in (
        ("restore", call.restore),
        ("verify", call.verify),
        ("swap", call.swap),
        ("drain", lambda: None),
    ):
        with call.folder.step(name):
            step()
    assert outcome_of(call.folder.case(), call.folder.notes(), None) is CaseOutcome.RESTORED_UNPROVEN
    assert counts_of(app) == app.expected


def test_should_refuse_before_anything_is_done(app, monkeypatch):
    with pytest.raises(StartRefused, match="target: 'nonsense' is not a time"):
        call_of(app, target="nonsense").preflight()
    other = call_of(app)
    other.plan()
    other.restore()
    with pytest.raises(PreflightFailed, match="is swapping: finish it"):
        call_of(app).preflight()
    other.roll_back()
    take_hold(app.settings.var_dir, app.name, Hold("c9", "an upgrade", 5))
    with pytest.raises(PreflightFailed, match="held by c9"):
        call_of(app).preflight()
    (app.settings.var_dir / "instances" / f"{app.name}.hold.json").unlink()
    full = shutil.disk_usage(app.settings.state_dir)._replace(free=1)
    monkeypatch.setattr("tidemark.operations.disk_space.shutil.disk_usage", lambda _folder: full)
    # What is built needs room, whatever lies there.
    shutil.rmtree(app.settings.state_dir)
    with pytest.raises(PreflightFailed, match="1 are free"):
        call_of(app, source="changelog").preflight()
    with pytest.raises(PreflightFailed, match=f"are needed in .*{app.name}.*, but 1 are free"):
        call_of(app, target=str(wall_clock_ms() - 1)).preflight()


@pytest.mark.parametrize(("point", "is_committed"), [("rewind-before-commit", False), ("rewind-verified", True)])
def test_should_begin_no_new_case_before_a_committed_rewind_is_finished(app, point, is_committed):
    """The new case would otherwise finish the earlier rewind and go back to its time, which nobody has approved."""
    then_ms = wall_clock_ms()
    app.feed(300, keys=70)
    app.run()
    probe, _ = crash_at(point)
    killed = call_of(app, target=str(then_ms), probe=probe)
    killed.preflight()
    killed.plan()
    with pytest.raises(Crash):
        killed.restore()
    name = killed.folder.folder.name
    other = call_of(app, target=str(wall_clock_ms()))
    if not is_committed:
        # The next start settles the transaction that the killed one has left open.
        app.run()
        other.preflight()
        return
    match = rf"rewind {name} of {app.name} is committed but not finished: .*`tidemark rewind run made --to .*`"
    for call in (other, call_of(app)):
        with pytest.raises(PreflightFailed, match=match):
            call.preflight()
    call_of(app, target=str(then_ms), case_id=name).preflight()
    assert rewind_of(app).run(wall_clock_ms(), YES)
    other.preflight()


def test_should_restore_nothing_when_nobody_has_approved(app):
    call = call_of(app)
    OnCall.plan(call)  # Nobody answers.
    with pytest.raises(StartRefused, match="no user has answered for the plan of case"):
        call.restore()
    answered(call.folder, app.settings, chosen="Reject")
    with pytest.raises(StartRefused, match="Grace answered Reject"):
        call.restore()
    answered(call.folder, app.settings)
    deployed = OperationContext.exactly(replace(app.plan, version="2"), app.settings, (), wall_clock_ms, None)
    with pytest.raises(StartRefused, match=r'plan\.topology\.version is "2" now and was "1" when the plan was made'):
        replace(call, restoring=deployed).restore()
    named = call.restoring.clients.settings.model_copy(update={"oncall_approvers": ["ada"]})
    with pytest.raises(StartRefused, match="is not in the setting oncall_approvers"):
        replace(
            call, restoring=replace(call.restoring, clients=replace(call.restoring.clients, settings=named))
        ).restore()
    assert workspaces(app.settings.state_dir, app.name) == []
    assert not approval_of(call).is_used


def test_should_not_continue_a_restore_that_began_under_another_plan(app):
    call = call_of(app)
    call.plan()
    other = make_plan(call.restoring.evidence, call.folder.case().case_id, SourceOfState.CHANGELOG)
    call._workspace.create(other)
    with pytest.raises(StartRefused, match=r'plan\.effects\.asked is "changelog" now and was null'):
        call.restore()


def test_should_use_an_approval_once_and_do_nothing_when_a_finished_case_is_repeated(app):
    call = call_of(app)
    summary = call.plan().summary
    for step in (call.restore, call.verify, call.swap):
        step()
    assert approval_of(call).is_done
    app.feed(100, keys=50)
    app.run()
    before = everything(app.settings.state_dir)
    assert OnCall.plan(call).summary == summary
    call.restore()
    assert everything(app.settings.state_dir) == before


def approval_of(call):
    return PlanApproval(call.folder, call.restoring.clients.settings)


def test_should_report_when_the_unread_input_is_not_drained_in_time(app):
    app.feed(60, keys=50)
    call = call_of(app)
    with pytest.raises(OutcomeUnknown, match="60 source offsets still wait after 0 s"):
        drain(call.restoring.evidence, 0.1, call.report)


def test_should_go_back_to_source_offsets_and_finish_a_rewind_that_was_killed(app):
    facts = call_of(app).rewinding.evidence.facts()
    stood = {p: c.offset for found in facts.values() for p, c in found.committed.items()}
    then = counts_of(app)
    app.feed(300, keys=70)
    app.run()
    now = counts_of(app)
    before = everything(app.settings.state_dir)
    probe, _ = crash_at("rewind-verified")
    call = call_of(app, target=",".join(f"{p}={o}" for p, o in stood.items()), probe=probe)
    call.preflight()
    planned = call.plan()
    assert everything(app.settings.state_dir) == before
    assert planned.kind is PlanKind.REWIND
    assert "emitted again" in planned.summary
    assert asdict(planned)["plan"]["tasks"][0]["to_offsets"] in [{p.topic: o} for p, o in stood.items()]
    with pytest.raises(Crash):
        call.restore()
    call.restore()
    call.restore()
    with pytest.raises(StartRefused, match="cannot be taken back"):
        call.roll_back()
    call.verify()
    call.swap()
    assert counts_of(app) == then
    assert "it is kept" in call.roll_back()
    assert counts_of(app) == then
    app.run()
    assert counts_of(app) == now == app.expected


def test_should_not_rewind_to_other_batches_than_were_approved(app):
    at_ms = wall_clock_ms()
    app.feed(100, keys=50)
    app.run()
    call = call_of(app, target=str(at_ms))
    planned = call.plan().to_dict()
    planned["plan"]["tasks"][0]["to_batch"] += 1
    call.folder.write("plan.json", planned)
    other = r"plan\.effects\.tasks\.0_0\.to_batch is \d+ now and was \d+ when the plan was made\. Trigger a new run"
    with pytest.raises(StartRefused, match=other):
        call.restore()
    assert not approval_of(call).is_used
    # Approved like that, it turns out when the states are built.
    planned["content"]["effects"]["tasks"][0]["to_batch"] += 1
    call.folder.write("plan.json", planned)
    (call.folder.folder / "asked.json").unlink()
    answered(call.folder, app.settings)
    with pytest.raises(StartRefused, match=other):
        call.restore()
    assert approval_of(call).is_used
    assert counts_of(app) == app.expected
    assert "nothing was committed" in call.roll_back()

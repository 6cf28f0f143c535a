"""Folders of a restore: every copy of a task is replaced, a crash can be continued, and the only copy is never removed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tidemark.errors import StartRefused
from tidemark.names import TaskId
from tidemark.operations.workspace import (
    Move,
    RestoreState,
    Workspace,
    WorkspaceProgress,
    is_id,
    last_swapped,
    new_id,
    unfinished,
    workspaces,
)
from tidemark.recovery.restore_plan import RestorePlan

APP, ID, TASK = "app", "20261122T031500000000Z", "0_1"
NO_PROBE = lambda _point: None  # noqa: E731


class Crash(Exception):
    """Simulates the death of the process at this point."""


def crash_at(number):
    """A probe that crashes the `number`th time it is passed."""
    passed = []

    def crash(point):
        passed.append(point)
        if len(passed) == number:
            raise Crash

    return crash


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path, APP, ID)


def hold(workspace, holder, what, task=TASK):
    """A holder's folder of a task, with something in it; the holder's folder of the application."""
    folder = workspace.state_dir / holder / APP
    (folder / task).mkdir(parents=True)
    (folder / task / "content").write_text(what)
    return folder


def build(workspace, task=TASK):
    (workspace.built / task).mkdir(parents=True)
    (workspace.built / task / "content").write_text("built")


def content(folder, task=TASK):
    path = folder / task / "content"
    return path.read_text() if path.exists() else None


def plan_of(restore_id=ID):
    return RestorePlan(restore_id, APP, "1", 5, None, (), (), {}, 0)


# --- every holder


@pytest.mark.parametrize(("owner", "place"), [(0, 0), (1, 1), (2, 0), (None, 0)])
def test_should_replace_the_owners_folder_and_remove_every_other(workspace, owner, place):
    held = [hold(workspace, "0", "a"), hold(workspace, "1", "b"), hold(workspace, "standby-0", "c")]
    moves = workspace.moves_of(TASK, held, owner)
    assert [(m.live, m.takes_built) for m in moves if m.takes_built] == [(f"{place}/{APP}/{TASK}", True)]
    build(workspace)
    workspace.swap(moves, NO_PROBE)
    found = [content(folder) for folder in held]
    assert found[place] == "built"
    assert [one for number, one in enumerate(found) if number != place] == [None, None]
    assert {path.read_text() for path in workspace.previous.rglob("content")} == {"a", "b", "c"}


@pytest.mark.parametrize(("before", "points"), [(True, ["swap-between", "swap-one"]), (False, ["swap-one"])])
def test_should_recognise_a_swap_that_has_moved_a_folder(workspace, before, points):
    held = hold(workspace, "0", "a") if before else workspace.state_dir / "0" / APP
    held.mkdir(parents=True, exist_ok=True)
    moves = workspace.moves_of(TASK, [held], 0)
    build(workspace)
    seen = {"begin": workspace.has_moved(moves)}
    workspace.swap(moves, lambda point: seen.update({point: workspace.has_moved(moves)}))
    assert [point for point, has_moved in seen.items() if has_moved] == points


def test_should_put_a_task_into_an_instances_folder_when_only_a_standby_has_it(workspace):
    first, standby = workspace.state_dir / "0" / APP, hold(workspace, "standby-0", "c")
    first.mkdir(parents=True)
    build(workspace)
    workspace.swap(workspace.moves_of(TASK, [first, standby], None), NO_PROBE)
    assert (content(first), content(standby)) == ("built", None)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_should_reach_the_same_end_when_a_swap_is_killed_and_repeated(workspace, number):
    held = [hold(workspace, "0", "stale"), hold(workspace, "1", "live")]
    moves = workspace.moves_of(TASK, held, 1)
    build(workspace)
    with pytest.raises(Crash):
        workspace.swap(moves, crash_at(number))
    workspace.swap(moves, NO_PROBE)
    assert [content(folder) for folder in held] == [None, "built"]
    workspace.swap_back(moves, workspace.moves_aside(moves, held))
    assert [content(folder) for folder in held] == ["stale", "live"]


# --- rolling back


def test_should_bring_every_folder_back_even_when_the_task_has_moved_meanwhile(workspace):
    held = [hold(workspace, "0", "old"), workspace.state_dir / "1" / APP]
    held[1].mkdir(parents=True)
    moves = workspace.moves_of(TASK, held, 0)
    build(workspace)
    workspace.swap(moves, NO_PROBE)
    (held[0] / TASK).rename(held[1] / TASK)  # Another instance has adopted it.
    workspace.swap_back(moves, workspace.moves_aside(moves, held))
    assert [content(folder) for folder in held] == ["old", None]


def test_should_keep_the_new_folder_until_the_replaced_one_is_back(workspace, monkeypatch):
    held = [hold(workspace, "0", "old")]
    moves = workspace.moves_of(TASK, held, 0)
    build(workspace)
    workspace.swap(moves, NO_PROBE)
    aside = workspace.moves_aside(moves, held)

    def dies(source, target):
        if workspace.previous in source.parents:
            raise Crash
        source.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr("tidemark.operations.workspace._move", dies)
        with pytest.raises(Crash):
            workspace.swap_back(moves, aside)
    contents = {path.read_text() for path in workspace.folder.rglob("content")}
    assert contents == {"old", "built"}
    workspace.swap_back(moves, aside)
    assert content(held[0]) == "old"
    workspace.swap_back(moves, aside)
    assert content(held[0]) == "old"


def test_should_leave_in_place_a_folder_that_replaced_nothing(workspace):
    first = workspace.state_dir / "0" / APP
    first.mkdir(parents=True)
    moves = workspace.moves_of(TASK, [first], None)
    assert moves == (Move(TASK, f"0/{APP}/{TASK}", "", takes_built=True),)
    build(workspace)
    assert workspace.kept_forward(moves) == []
    workspace.swap(moves, NO_PROBE)
    assert workspace.kept_forward(moves) == [TASK]
    workspace.swap_back(moves, workspace.moves_aside(moves, [first]))
    assert content(first) == "built"


def test_should_not_touch_a_stale_folder_that_a_killed_swap_had_not_reached(workspace):
    held = [hold(workspace, "0", "live"), hold(workspace, "1", "stale")]
    moves = workspace.moves_of(TASK, held, 0)
    build(workspace)
    with pytest.raises(Crash):
        workspace.swap(moves, crash_at(2))
    workspace.swap_back(moves, workspace.moves_aside(moves, held))
    assert [content(folder) for folder in held] == ["live", "stale"]


def test_should_report_that_the_replaced_folder_is_missing(workspace):
    held = [hold(workspace, "0", "old")]
    moves = workspace.moves_of(TASK, held, 0)
    build(workspace)
    assert workspace.lost(moves) == []
    workspace.swap(moves, NO_PROBE)
    assert workspace.lost(moves) == []
    (workspace.previous / "0" / TASK / "content").unlink()
    (workspace.previous / "0" / TASK).rmdir()
    assert workspace.lost(moves) == list(moves)


# --- one store of a task

UNIT = f"{TASK}/rocksdb/n"


def hold_stores(workspace, holder, *stores, what=None):
    """A holder's folder of a task with a folder per store, each with something in it; the holder's folder."""
    folder = workspace.state_dir / holder / APP
    folder.mkdir(parents=True, exist_ok=True)
    for store in stores:
        place = folder / TASK / "rocksdb" / store
        place.mkdir(parents=True)
        (place / "content").write_text(f"{what or holder} {store}")
    return folder


def build_store(workspace):
    (workspace.built / UNIT).mkdir(parents=True)
    (workspace.built / UNIT / "content").write_text("built")


def stores_of(folder):
    return {path.parent.name: path.read_text() for path in (folder / TASK).glob("rocksdb/*/content")}


@pytest.mark.parametrize("number", [1, 2, 3, None])
def test_should_replace_one_store_in_every_folder_and_leave_the_others_in_place(workspace, number):
    """This holds when the swap is killed at any of its failpoints, and after a rollback."""
    held = [
        hold_stores(workspace, "0", "n", "m"),
        hold_stores(workspace, "1", "n", "m"),
        hold_stores(workspace, "2"),
        hold_stores(workspace, "standby-0", "n"),
    ]
    before = [stores_of(folder) for folder in held]
    moves = workspace.moves_of(UNIT, held, 1)
    assert [move.live.split("/")[0] for move in moves] == ["1", "0", "standby-0"]
    build_store(workspace)
    if number is not None:
        with pytest.raises(Crash):
            workspace.swap(moves, crash_at(number))
    workspace.swap(workspace.with_their_tasks(moves, held), NO_PROBE)
    assert [stores_of(folder) for folder in held] == [{"m": "0 m"}, {"m": "1 m", "n": "built"}, {}, {}]
    # It takes a task over where it holds no store of it, and no folder of stores either.
    assert not (held[3] / TASK / "rocksdb").exists()
    workspace.swap_back(moves, workspace.moves_aside(moves, held))
    assert [stores_of(folder) for folder in held] == before


@pytest.mark.parametrize("holders", [["standby-0"], ["1", "standby-0"], []])
def test_should_put_a_store_next_to_the_others_of_its_task(workspace, holders):
    first = hold_stores(workspace, "0")
    held = [first, *(hold_stores(workspace, holder, "m") for holder in holders)]
    build_store(workspace)
    workspace.swap(workspace.moves_of(UNIT, held, 0), NO_PROBE)
    place = held[1] if holders else first
    assert stores_of(place)["n"] == "built"
    assert [folder for folder in held if "n" in stores_of(folder)] == [place]


@pytest.mark.parametrize("number", [1, 2])
def test_should_follow_a_task_that_an_instance_took_over_during_a_swap(workspace, number):
    held = [hold_stores(workspace, "0", "n", "m"), hold_stores(workspace, "1")]
    moves = workspace.moves_of(UNIT, held, 0)
    build_store(workspace)
    with pytest.raises(Crash):
        workspace.swap(moves, crash_at(number))
    (held[0] / TASK).rename(held[1] / TASK)
    if number == 1:
        # It rebuilt what it missed.
        hold_stores(workspace, "1", "n", what="from Kafka")
    moves = workspace.with_their_tasks(moves, held)
    workspace.swap(moves, NO_PROBE)
    assert [stores_of(folder) for folder in held] == [{}, {"m": "0 m", "n": "built"}]
    workspace.swap_back(moves, workspace.moves_aside(moves, held))
    assert [stores_of(folder) for folder in held] == [{}, {"m": "0 m", "n": "0 n"}]


def test_should_not_prefer_a_stale_store_when_its_instance_took_the_task_over(workspace):
    held = [hold_stores(workspace, "0", "n", "m"), hold_stores(workspace, "1", "n", what="stale")]
    moves = workspace.moves_of(UNIT, held, 0)
    build_store(workspace)
    workspace.swap(moves, NO_PROBE)
    (held[1] / TASK).rmdir()
    (held[0] / TASK).rename(held[1] / TASK)
    moves = workspace.with_their_tasks(moves, held)
    workspace.swap(moves, NO_PROBE)
    assert stores_of(held[1]) == {"m": "0 m", "n": "built"}
    workspace.swap_back(moves, workspace.moves_aside(moves, held))
    assert [stores_of(folder) for folder in held] == [{}, {"m": "0 m", "n": "0 n"}]


def test_should_not_touch_a_folder_that_was_created_after_the_removal(workspace):
    held = [hold(workspace, "0", "live"), hold(workspace, "1", "stale")]
    moves = workspace.moves_of(TASK, held, 0)
    build(workspace)
    workspace.swap(moves, NO_PROBE)
    (held[0] / TASK).rename(held[1] / TASK)  # Killed before it was done, then instance 1 ran.
    workspace.swap(moves, NO_PROBE)
    assert [content(folder) for folder in held] == [None, "built"]


# --- plans and progress


OTHER_ID = "20261122T041500000000Z"


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        (RestoreState.BUILDING, ("restore run clicks --resume", "restore abort clicks")),
        (RestoreState.SWAPPING, ("restore run clicks --resume", "restore rollback clicks")),
        (RestoreState.ROLLING_BACK, ("restore rollback clicks",)),
        (RestoreState.PLANNED, None),
        (RestoreState.DONE, None),
    ],
)
def test_should_name_the_commands_with_the_id_for_a_restore_that_was_left_unfinished(workspace, state, remedy):
    workspace.create(plan_of())
    workspace.write(WorkspaceProgress(state))
    found = unfinished(workspace.state_dir, APP, but=OTHER_ID)
    assert [one.folder for one in found] == ([] if remedy is None else [workspace.folder])
    assert unfinished(workspace.state_dir, APP, but=ID) == []
    if remedy is not None:
        assert re.findall(rf"`tidemark ([^`]*) {ID}`", found[0].remedy("clicks")) == list(remedy)


@pytest.mark.parametrize("state", [RestoreState.DONE, RestoreState.SWAPPING, RestoreState.ROLLING_BACK])
def test_should_name_the_restore_that_undoes_what_cannot_be_aborted(workspace, state):
    workspace.create(plan_of())
    workspace.write(WorkspaceProgress(state))
    with pytest.raises(StartRefused, match=f"is {state}: .* `tidemark restore rollback NAME {ID}` undoes it"):
        workspace.abort()


@pytest.mark.parametrize(
    ("states", "last"),
    [
        ((("aborted", 5), ("failed", 6), ("building", 0)), None),
        ((("done", 20), ("done", 10)), 0),
        ((("done", 10), ("done", 20)), 1),
        ((("done", 20), ("rolled back", 30)), 1),
        ((("rolled back", 30), ("done", 20)), 0),
        ((("swapping", 0), ("done", 20)), 0),
        ((("done", 20), ("rolling back", 10)), 1),
        ((("done", 20), ("aborted", 30)), 0),
    ],
)
def test_should_find_the_restore_that_has_replaced_folders_last_whenever_it_was_planned(tmp_path, states, last):
    """The restores are in the order of their plans; each has a state and the time of its end."""
    made = [Workspace(tmp_path, APP, f"2026112{day}T031500000000Z") for day, _ in enumerate(states)]
    for workspace, (state, ended_ms) in zip(made, states, strict=True):
        workspace.folder.mkdir(parents=True)
        (workspace.folder / "plan.json").touch()
        workspace.write(WorkspaceProgress(RestoreState(state), ended_ms=ended_ms))
    found = last_swapped(tmp_path, APP)
    assert (found and found.folder) == (None if last is None else made[last].folder)


def test_should_keep_the_progress_when_the_same_plan_is_given_again(workspace):
    workspace.create(plan_of())
    moves = (Move(TASK, f"0/{APP}/{TASK}", f".restores/{APP}/{ID}/previous/0/{TASK}", takes_built=True),)
    aside = (replace(moves[0], takes_built=False),)
    progress = WorkspaceProgress(RestoreState.SWAPPING, verdicts={}, moves=moves, aside=aside)
    workspace.write(progress)
    workspace.create(plan_of())
    assert workspace.progress() == progress
    with pytest.raises(StartRefused, match="begun with another plan"):
        workspace.create(replace(plan_of(), created_ms=6))
    assert workspace.progress() == progress


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../../elsewhere",
        "/tmp/x",
        f"../{ID}",
        f"{ID}/..",
        f"{ID}\n",
        "r1",
        ID.lower(),
        ID[:-1],
        f"{ID}Z",
    ],
)
def test_should_refuse_an_invalid_id_because_it_becomes_a_path(tmp_path, name):
    assert not is_id(name)
    with pytest.raises(StartRefused, match="is not the id of a restore"):
        Workspace(tmp_path, APP, name)


def test_should_accept_the_ids_that_it_makes_and_ignore_other_folders(workspace):
    assert is_id(new_id())
    workspace.create(plan_of())
    other = workspace.folder.with_name("lost+found")
    other.mkdir()
    (other / "plan.json").write_text("{}")
    assert [found.folder.name for found in workspaces(workspace.state_dir, APP)] == [ID]


def test_should_refuse_a_plan_of_tasks_that_are_paths():
    text = plan_of().to_json()
    assert RestorePlan.from_json(text) == plan_of()
    store = (
        '{"task": "%s", "store": "n", "source": "local", "location": "x", "from_offset": 0, "end_offset": 1, '
        '"bytes_to_copy": 0, "eta_s": 0.0, "passed_over": []}'
    )
    assert RestorePlan.from_json(text.replace('"stores": [],', f'"stores": [{store % TASK}],', 1)).tasks == [TASK]
    for name in ("..", "../../../../elsewhere", "n/..", ""):
        named = (store % TASK).replace('"store": "n"', f'"store": "{name}"')
        with pytest.raises(StartRefused, match="not a restore plan"):
            RestorePlan.from_json(text.replace('"stores": [],', f'"stores": [{named}],', 1))
    for task in ("../0_1", "00_1", "0_1/..", "0_1\\n"):
        with pytest.raises(StartRefused, match="not a restore plan"):
            RestorePlan.from_json(text.replace('"stores": [],', f'"stores": [{store % task}],', 1))
    assert str(TaskId.parse(TASK)) == TASK

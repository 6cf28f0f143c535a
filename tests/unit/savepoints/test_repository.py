"""Savepoints in a folder and on another file system: what is copied, when it is complete, what is removed."""

from __future__ import annotations

import errno

import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.support.savepoints import APP, SPEC, TASKS, contents, open_store, put, save

from tidemark.errors import CopyUnusable, InvalidSettings, SavepointFailed
from tidemark.names import TaskId
from tidemark.overview.stores import read_savepoint
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.expiry import GIVEN_UP_MS, expire, expired_ids
from tidemark.savepoints.manifest import SavepointManifest, TaskManifest
from tidemark.savepoints.repository import Savepoint, SavepointRepository
from tidemark.savepoints.upload import CopyCount, LinkedSavepoint, copy_linked, link_task
from tidemark.savepoints.verification import verify
from tidemark.settings import Settings
from tidemark.supervision.savepoint_ids import begun_ms, is_ahead, new_savepoint_id
from tidemark.topology.plan import StoreKind, StoreSpec

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


def an_id(hours_ago: float) -> str:
    return new_savepoint_id(NOW_MS - round(hours_ago * HOUR_MS))


def test_should_return_what_was_saved(repository, stores, tmp_path):
    saved = an_id(0)
    save(repository, stores, tmp_path / "links", saved)
    copies = SavepointCopies(SavepointRepository(repository.location, APP))
    for task, store in stores.items():
        (copy,) = copies.find([task])[task]["counts"]
        assert copy.checkpoint == store.checkpoint
        copies.fetch(copy, task, "counts", tmp_path / "fetched" / str(task))
        opened = open_store(tmp_path / "fetched" / str(task))
        assert (opened.checkpoint, contents(opened)) == (store.checkpoint, contents(store))
        opened.close()
        files = list((tmp_path / "fetched" / str(task)).iterdir())
        assert copy.bytes_to_copy > 0
        assert files


def test_should_list_and_verify_what_was_saved(repository, stores, tmp_path):
    saved = an_id(0)
    count = save(repository, stores, tmp_path / "links", saved)
    (found,) = repository.savepoints()
    assert (found.savepoint_id, found.tasks, found.is_complete) == (saved, ("0_0", "0_1"), True)
    assert found.manifest.total_bytes == count.done_bytes
    verified = verify(repository, saved)
    assert (verified.tasks, verified.faults) == (2, ())
    assert verified.files == len(repository.file_sizes())


def test_should_copy_only_what_is_new(repository, stores, tmp_path):
    first = save(repository, stores, tmp_path / "links", an_id(2))
    put(stores[TASKS[0]], 9, {5: 3})
    second = save(repository, stores, tmp_path / "links", an_id(1))
    assert first.copied_bytes > 0
    assert 0 < second.copied_bytes < first.copied_bytes
    assert second.done_bytes > second.copied_bytes
    tables = list((tmp_path / "state" / "0_1" / "counts").glob("*.sst"))
    assert tables, "the other task's tables are those of the first savepoint"


def test_should_leave_no_link(repository, stores, tmp_path):
    save(repository, stores, tmp_path / "links", an_id(0))
    assert list((tmp_path / "links").rglob("*")) == []


def test_should_be_incomplete_until_every_task_is_saved(repository, stores, tmp_path):
    saved = an_id(0)
    with pytest.raises(SavepointFailed, match="lacks task 0_2, 1_0"):
        _save_but_expect(repository, stores, tmp_path, saved, [*stores, TaskId(0, 2), TaskId(1, 0)])
    (found,) = repository.savepoints()
    assert (found.is_complete, found.tasks) == (False, ("0_0", "0_1"))
    assert SavepointCopies(repository).find([TASKS[0]])[TASKS[0]] == {}


def _save_but_expect(repository, stores, tmp_path, saved, tasks):
    folder = tmp_path / "links" / saved
    linked = tuple(link_task(task, {SPEC: store}, folder) for task, store in stores.items())
    copy_linked(LinkedSavepoint(saved, APP, "1", 5, folder, linked), repository, CopyCount(lambda: None))
    repository.complete(saved, "1", 5, tasks)


def test_should_be_incomplete_when_a_file_vanished_during_the_upload(local, stores, tmp_path):
    saved = an_id(0)
    folder = tmp_path / "links" / saved
    linked = tuple(link_task(task, {SPEC: store}, folder) for task, store in stores.items())
    copy_linked(LinkedSavepoint(saved, APP, "1", 5, folder, linked), local, CopyCount(lambda: None))
    gone = max(local.file_sizes().items(), key=lambda entry: entry[1])[0]
    local.remove_files([gone])
    with pytest.raises(SavepointFailed, match="is missing or has another size"):
        local.complete(saved, "1", 5, list(stores))
    assert not local.savepoint(saved).is_complete


@pytest.mark.parametrize("stopped_at", [0, 1, 2, 5])
def test_should_leave_no_complete_savepoint_when_stopped_during_the_upload(local, stores, tmp_path, stopped_at):
    calls = []

    def stop():
        calls.append(1)
        if len(calls) > stopped_at:
            raise SavepointFailed("stopped")

    saved = an_id(0)
    folder = tmp_path / "links" / saved
    linked = tuple(link_task(task, {SPEC: store}, folder) for task, store in stores.items())
    with pytest.raises(SavepointFailed, match="stopped"):
        copy_linked(LinkedSavepoint(saved, APP, "1", 5, folder, linked), local, CopyCount(stop))
    assert not folder.exists()
    assert all(not savepoint.is_complete for savepoint in local.savepoints())
    assert not list((tmp_path / "savepoints" / APP).glob("unfinished/*"))


def test_should_leave_no_partial_file_when_the_disk_is_full(local, stores, tmp_path, monkeypatch):
    folder = tmp_path / "links" / "x"
    linked = tuple(link_task(task, {SPEC: store}, folder) for task, store in stores.items())

    def full(self, path, mode="rb", **_):
        opened = real(self, path, mode)
        if mode == "wb":
            opened.write = _no_space
        return opened

    real = LocalFileSystem.open
    monkeypatch.setattr(LocalFileSystem, "open", full)
    with pytest.raises(SavepointFailed, match="No space left on device"):
        copy_linked(LinkedSavepoint("x", APP, "1", 5, folder, linked), local, CopyCount(lambda: None))
    assert sum(local.file_sizes().values()) == 0
    assert local.savepoints() == []
    assert not list((tmp_path / "savepoints" / APP).glob("unfinished/*"))


def _no_space(_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("location", ["no-such-protocol://bucket/x", "s3nothing://x"])
def test_should_name_a_location_that_cannot_be_used(location):
    with pytest.raises(InvalidSettings, match="TIDEMARK_SAVEPOINT_LOCATION"):
        SavepointRepository(location, APP)


def test_should_report_a_server_that_cannot_be_reached_only_when_it_is_used(server, caplog):
    server.is_up = False
    repository = SavepointRepository(server.location, APP)
    with pytest.raises(
        SavepointFailed, match=rf"{server.location} cannot be reached: Error reading SSH protocol banner"
    ):
        repository.ids()
    assert SavepointCopies(repository).find(TASKS) == {task: {} for task in TASKS}
    assert "no savepoint is considered" in caplog.text
    settings = Settings.load(savepoint_location=server.location)
    assert "Error reading SSH protocol banner" in read_savepoint(settings, APP).fault
    server.is_up = True
    assert repository.ids() == []


def test_should_connect_again_after_the_server_has_closed_the_connection(server, stores, tmp_path):
    repository = SavepointRepository(server.location, APP)
    saved = an_id(0)
    save(repository, stores, tmp_path / "links", saved)
    assert len(server.connections) == 1
    server.close_all()
    with pytest.raises(SavepointFailed, match="Socket is closed"):
        repository.ids()
    assert repository.ids() == [saved]
    server.close_all()
    assert SavepointRepository(server.location, APP).ids() == [saved], "it does not use the other one's connection"


@pytest.mark.parametrize("location", ["memory://x", "dir::memory://x", "simplecache::memory://x"])
def test_should_connect_anew_at_each_link_of_a_location(location, monkeypatch):
    monkeypatch.setattr("tidemark.savepoints.repository._IDLE_S", 0.0)
    kept = SavepointRepository(location, APP)
    first, second = ([kept._connected().fs] for _ in range(2))
    while hasattr(first[-1], "fs"):
        first, second = [*first, first[-1].fs], [*second, second[-1].fs]
    assert len(first) == location.count("::") + 1
    assert all(one is not other for one, other in zip(first, second, strict=True))


def test_should_not_use_a_connection_again_that_was_idle_for_a_minute(server, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr("tidemark.savepoints.repository.time.monotonic", lambda: now_s)
    repository = SavepointRepository(server.location, APP)
    for idle_s, connections in ((0.0, 1), (59.9, 1), (59.9, 1), (60.0, 2)):
        now_s += idle_s
        assert repository.ids() == []
        assert len(server.connections) == connections
    server.close_all()
    now_s += 60
    assert repository.ids() == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (StoreSpec("s", StoreKind.KEY_VALUE, None, None, in_memory=True), "in memory"),
        (StoreSpec("s", StoreKind.KEY_VALUE, None, None, custom="a:B"), "custom"),
        (StoreSpec("s", StoreKind.KEY_VALUE, None, None, is_logged=False), "not logged"),
    ],
)
def test_should_name_the_stores_that_are_left_out(stores, tmp_path, spec, reason):
    (store, _) = stores.values()
    linked = link_task(TASKS[0], {SPEC: store, spec: None}, tmp_path / "links")
    assert [(left.store, left.reason) for left in linked.left_out] == [("s", reason)]
    assert [kept.store for kept in linked.stores] == ["counts"]


def test_should_read_manifests_back(repository, stores, tmp_path):
    saved = an_id(0)
    save(repository, stores, tmp_path / "links", saved)
    task = repository.task(saved, "0_0")
    assert TaskManifest.from_bytes(task.to_bytes()) == task
    whole = repository.manifest(saved)
    assert SavepointManifest.from_bytes(whole.to_bytes()) == whole


@pytest.mark.parametrize("name", ["../counts", "a/b", "..", "", "/etc/passwd"])
def test_should_refuse_a_name_that_leads_out_of_the_folder(local, stores, tmp_path, name):
    saved = an_id(0)
    save(local, stores, tmp_path / "links", saved)
    manifest = local.task(saved, "0_0")
    first = manifest.stores[0].files[0].name
    changed = manifest.to_bytes().replace(f'"name": "{first}"'.encode(), f'"name": "{name}"'.encode())
    with pytest.raises(CopyUnusable, match="is not the name of a store's file"):
        TaskManifest.from_bytes(changed)


def listed(*hours_ago: float, not_whole: tuple[float, ...] = (), unreadable: tuple[float, ...] = ()) -> list[Savepoint]:
    manifest = SavepointManifest("", APP, "1", 0, (), 0)
    every = [Savepoint(an_id(hours), (), manifest, None, 0) for hours in hours_ago]
    every += [Savepoint(an_id(hours), (), None, "missing", round(NOW_MS - hours * HOUR_MS)) for hours in not_whole]
    every += [Savepoint(an_id(hours), (), None, "unreadable", 0, is_unreadable=True) for hours in unreadable]
    every.sort(key=lambda savepoint: savepoint.savepoint_id, reverse=True)
    return sorted(every, key=lambda savepoint: is_ahead(savepoint.savepoint_id, NOW_MS))


@pytest.mark.parametrize(
    ("savepoints", "keep", "max_age_h", "left_h", "why"),
    [
        (listed(1, 2, 3), 3, None, [1, 2, 3], "as many as are to stay"),
        (listed(1, 2, 3), 2, None, [1, 2], "one too many: the oldest goes"),
        (listed(1, 2, 3), 0, None, [], "none is to stay"),
        (listed(1, 2, 3), None, None, [1, 2, 3], "no bound"),
        (listed(1, 2, 3), None, 2, [1, 2], "exactly as old as it may be stays"),
        (listed(1, 2, 3), 1, 2, [1], "both bounds hold"),
        (listed(1, not_whole=(0.5, 0.9)), 1, None, [0.5, 0.9, 1], "unfinished ones count for nothing, and may be at work"),
        (listed(3, not_whole=(1, 2)), 1, None, [3], "an hour after its beginning a savepoint is given up"),
        (listed(3, unreadable=(2,)), 1, None, [2, 3], "an unreadable one counts for nothing, and may be readable again"),
        (listed(2, unreadable=(3,)), 1, None, [2], "an unreadable one goes when enough newer ones are complete"),
        (listed(unreadable=(2, 3)), None, 2, [2], "the age holds for unreadable ones"),
        (listed(0, -48, -48, -48), 3, None, [-48, -48, 0], "one of a clock that was ahead is not newer than that of now"),
        (listed(-1, 1), 1, None, [-1], "clocks may differ by an hour"),
        (listed(1, not_whole=(-48,)), 1, None, [1], "an unfinished one of a clock that was ahead is given up"),
    ],
)  # fmt: skip
def test_should_expire_by_count_and_age(savepoints, keep, max_age_h, left_h, why):
    max_age_ms = None if max_age_h is None else max_age_h * HOUR_MS
    gone = expired_ids(savepoints, keep, max_age_ms, NOW_MS)
    left = sorted((NOW_MS - begun_ms(s.savepoint_id)) / HOUR_MS for s in savepoints if s.savepoint_id not in gone)
    assert left == left_h, why


def test_should_take_the_state_first_from_savepoints_that_no_wrong_clock_has_named(repository, stores, tmp_path):
    named = [an_id(hours) for hours in (-48, -47, 0, 1)]
    for savepoint_id in named:
        save(repository, stores, tmp_path / "links" / savepoint_id, savepoint_id)
    copies = SavepointCopies(repository, clock=lambda: NOW_MS)
    found = copies.find(TASKS)[TASKS[0]]["counts"]
    assert [copy.location.split("/")[-2] for copy in found] == [named[2], named[3], named[0]]


def test_should_expire_and_show_savepoints_in_that_order(local, stores, tmp_path):
    named = [an_id(hours) for hours in (-48, -47, -46, 0, 1)]
    for savepoint_id in named:
        save(local, stores, tmp_path / "links" / savepoint_id, savepoint_id)
    settings = Settings.load(savepoint_location=local.location)
    assert read_savepoint(settings, APP, lambda: NOW_MS).savepoint_id == named[3]
    assert expire(local, 2, None, NOW_MS).savepoints == tuple(named[:3])


def test_should_delete_files_that_only_expired_savepoints_name(repository, stores, tmp_path):
    old, new = an_id(2), an_id(1)
    save(repository, stores, tmp_path / "links", old)
    put(stores[TASKS[0]], 9, {5: 3})
    save(repository, stores, tmp_path / "links", new)
    before = repository.file_sizes()
    gone = expire(repository, 1, None, NOW_MS)
    after = repository.file_sizes()
    assert gone.savepoints == (old,)
    assert gone.files_kept is None
    assert gone.files == len(before) - len(after) > 0
    assert gone.bytes == sum(before.values()) - sum(after.values())
    assert verify(repository, new).faults == ()
    assert [savepoint.savepoint_id for savepoint in repository.savepoints()] == [new]
    assert expire(repository, 0, None, NOW_MS).savepoints == (new,)
    assert repository.file_sizes() == {}


@pytest.mark.parametrize(("age_ms", "stay"), [(GIVEN_UP_MS - 1, True), (GIVEN_UP_MS, False), (0, True)])
def test_should_keep_all_files_while_another_savepoint_is_being_written(repository, stores, tmp_path, age_ms, stay):
    save(repository, stores, tmp_path / "links", an_id(3))
    writing = an_id(2)
    repository.begin(writing, NOW_MS - 2 * HOUR_MS)
    repository.begin(writing, NOW_MS - age_ms)
    before = repository.file_sizes()
    gone = expire(repository, 0, None, NOW_MS)
    assert (writing in gone.savepoints) is not stay
    assert repository.file_sizes() == (before if stay else {})
    assert (gone.files_kept is not None) is stay


@pytest.mark.parametrize("left", [[], ["begun"]])
def test_should_judge_by_the_beginning_when_nothing_says_when_a_savepoint_was_last_taken(local, tmp_path, left):
    for name in (old := an_id(1), new := an_id(0.9)):
        folder = tmp_path / "savepoints" / APP / "savepoints" / name
        folder.mkdir(parents=True)
        for file in left:
            (folder / file).write_text("")
    assert [savepoint.alive_ms for savepoint in local.savepoints()] == [begun_ms(new), begun_ms(old)]
    assert expire(local, 1, None, NOW_MS).savepoints == (old,)


@pytest.mark.parametrize("is_writing", [True, False])
def test_should_delete_what_a_killed_writer_left_unless_another_is_writing(local, stores, tmp_path, is_writing):
    save(local, stores, tmp_path / "links", an_id(3))
    left = tmp_path / "savepoints" / APP / "unfinished" / "half"
    left.write_bytes(b"half")
    if is_writing:
        local.begin(an_id(2), NOW_MS)
    expire(local, 1, None, NOW_MS)
    assert left.exists() is is_writing


@pytest.mark.parametrize(("name", "left_h"), [("0_1.json", [1]), ("manifest.json", [1, 2])])
def test_should_keep_all_files_when_a_manifest_cannot_be_read(local, stores, tmp_path, name, left_h):
    old, new = an_id(2), an_id(1)
    save(local, stores, tmp_path / "links", old)
    put(stores[TASKS[0]], 9, {5: 3})
    save(local, stores, tmp_path / "links", new)
    (tmp_path / "savepoints" / APP / "savepoints" / new / name).write_text("{")
    before = local.file_sizes()
    gone = expire(local, 1, None, NOW_MS)
    assert [(NOW_MS - begun_ms(left)) / HOUR_MS for left in local.ids()] == left_h
    assert f"{new}/{name}: it cannot be read" in gone.files_kept
    assert local.file_sizes() == before

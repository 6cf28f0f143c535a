"""The hand-over of a copy while it is followed, and copies that cannot be handed over."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager

import pytest
from tests.support.standby import contents, count, follow_until

from tidemark.errors import CopyUnusable, StartRefused
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.standby import handover
from tidemark.standby.copies import StandbyCopies, write_copies
from tidemark.standby.handover import HANDOVER_FOLDER, Handovers
from tidemark.standby.process import run_standby
from tidemark.stores.directory import InstanceDirectory
from tidemark.stores.rocksdb import RocksStore
from tidemark.supervision.run_file import read_run_file, standby_file_path

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

TASK = TaskId(0, 0)


@contextmanager
def running(application, number=0):
    """A standby in a thread; gives the list of what it told last."""
    stop, paces, failures = threading.Event(), [], []

    def run():
        try:
            run_standby(
                application.plan, application.settings, number, "made", stop, lambda summary: paces.append(summary)
            )
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield paces
    finally:
        stop.set()
        thread.join()
        assert failures == []


def copies_of(application):
    return StandbyCopies(application.settings.state_dir, application.id, answer_s=60)


def fetched(application, copy, folder):
    """Content and marker of a copy after its hand-over."""
    copies_of(application).fetch(copy, TASK, "n", folder)
    store = RocksStore(folder, write_buffer_bytes=1 << 20)
    try:
        return contents(store), store.checkpoint
    finally:
        store.close()


def test_should_hand_over_what_the_changelog_holds_while_both_continue(counting, settings):
    counting.commit({"n": {0: [(b"%d" % i, count(i)) for i in range(50)]}})
    copies = copies_of(counting)
    written = threading.Event()

    def write():
        number = 0
        while not written.is_set():
            number += 1
            counting.commit({"n": {0: [(b"%d" % (number % 70), count(number)), (b"%d" % (number % 7), None)]}})

    with running(counting) as paces:
        assert wait_until(lambda: copies.find([TASK])[TASK].get("n"), 60)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            (before,) = copies.find([TASK])[TASK]["n"]
            assert before.kind is SourceOfState.STANDBY
            assert wait_until(
                lambda: (
                    copies.find([TASK])[TASK]["n"][0].checkpoint.changelog_offset > before.checkpoint.changelog_offset
                ),
                60,
            )
            (copy,) = copies.find([TASK])[TASK]["n"]
            held, checkpoint = fetched(counting, copy, settings.state_dir / "0" / "n.restoring")
            assert wait_until(lambda: paces[-1][0].next_offset > checkpoint.changelog_offset, 60), "it did not go on"
        finally:
            written.set()
            writer.join()
        assert checkpoint.changelog_offset >= copy.checkpoint.changelog_offset > 50
        assert held == counting.fold("n", before_offset=checkpoint.changelog_offset)
        end = counting.ends.of([counting.changelog("n")])[counting.changelog("n")]
        assert wait_until(lambda: paces[-1][0].next_offset >= end, 60), "the standby did not go on"
        last, checkpoint = fetched(counting, copies.find([TASK])[TASK]["n"][0], settings.state_dir / "0" / "again")
        assert (last, checkpoint.changelog_offset) == (counting.fold("n"), end)
        box = settings.state_dir / "standby-0" / counting.id / HANDOVER_FOLDER
        assert list(box.iterdir()) == []


def test_should_find_no_copy_and_not_wait_when_the_standby_is_gone(counting, settings):
    counting.commit({"n": {0: [(b"a", count(1))]}})
    copies = copies_of(counting)
    with running(counting):
        assert wait_until(lambda: copies.find([TASK])[TASK].get("n"), 60)
        (copy,) = copies.find([TASK])[TASK]["n"]
        assert copies.find([TaskId(0, 1)])[TaskId(0, 1)] == {}
    assert copies.find([TASK])[TASK] == {}
    with pytest.raises(CopyUnusable, match="did not hand n of task 0_0 over"):
        copies.fetch(copy, TASK, "n", settings.state_dir / "0" / "n.restoring")


def test_should_give_up_on_a_standby_that_does_not_answer_and_withdraw_the_request(counting, standby, settings):
    counting.commit({"n": {0: [(b"a", count(1))]}})
    follower = standby(counting)
    counting.follow(follower)
    root = settings.state_dir / "standby-0" / counting.id
    write_copies(root, follower.stores)
    copies = StandbyCopies(settings.state_dir, counting.id, answer_s=0.3)
    (copy,) = copies.find([TASK])[TASK]["n"]
    with pytest.raises(CopyUnusable, match="did not hand n of task 0_0 over"):
        copies.fetch(copy, TASK, "n", settings.state_dir / "0" / "n.restoring")
    assert list((root / HANDOVER_FOLDER).iterdir()) == []


def test_should_neither_find_nor_await_the_copies_of_a_standby_that_has_stopped_reporting(
    counting, standby, settings, caplog
):
    """It was stopped, or its disk hangs, and it still has its lock."""
    counting.commit({"n": {0: [(b"a", count(1))]}})
    follower = standby(counting)
    counting.follow(follower)
    root = settings.state_dir / "standby-0" / counting.id
    write_copies(root, follower.stores)
    (copy,) = copies_of(counting).find([TASK])[TASK]["n"]
    silent_since_s = time.time() - 16
    os.utime(root / ".copies", (silent_since_s, silent_since_s))
    assert copies_of(counting).find([TASK])[TASK] == {}
    assert "its copies are skipped" in caplog.text
    with pytest.raises(CopyUnusable, match="has not reported for 16 s"):
        copies_of(counting).fetch(copy, TASK, "n", settings.state_dir / "0" / "n.restoring")


def test_should_offer_no_copy_when_the_application_has_never_committed(counting, standby, settings):
    """A copy of an application that has never committed would prevent its first start."""
    follower = standby(counting)
    counting.follow(follower)
    write_copies(settings.state_dir / "standby-0" / counting.id, follower.stores)
    assert copies_of(counting).find([TASK])[TASK] == {}
    counting.commit({"n": {0: [(b"a", count(1))]}})
    follow_until(follower, lambda: follower.store(TASK, "n").next_offset > 0)
    write_copies(settings.state_dir / "standby-0" / counting.id, follower.stores)
    assert list(copies_of(counting).find([TASK])[TASK]) == ["n"]


def test_should_skip_a_standby_whose_list_of_copies_cannot_be_read(counting, standby, settings, caplog):
    standby(counting)
    (settings.state_dir / "standby-0" / counting.id / ".copies").write_text('{"0_0": {"n": {"batch')
    assert copies_of(counting).find([TASK])[TASK] == {}
    assert "its copies are skipped" in caplog.text


def test_should_remove_the_files_of_an_earlier_process(tmp_path):
    left = tmp_path / HANDOVER_FOLDER / "1.ready" / "CURRENT"
    left.parent.mkdir(parents=True)
    left.touch()
    handovers = Handovers(tmp_path)
    assert list((tmp_path / HANDOVER_FOLDER).iterdir()) == []
    handovers.close()
    assert not (tmp_path / HANDOVER_FOLDER).exists()


@pytest.mark.parametrize("request_text", ["", "0_0", "zero_0 n", "0_0 unknown"])
def test_should_continue_when_a_request_is_malformed(tmp_path, caplog, request_text):
    handovers = Handovers(tmp_path)
    (tmp_path / HANDOVER_FOLDER / "1.wanted").write_text(request_text)
    handovers.answer(lambda task, store: None)
    assert list((tmp_path / HANDOVER_FOLDER).iterdir()) == []
    assert len([record for record in caplog.records if record.name == handover.__name__]) == 1


def test_should_end_with_the_reason_when_the_changelog_holds_other_values(counting, settings):
    counting.commit({"n": {0: [(b"a", b"three fields wide")], 1: [(b"x", count(1))]}})
    stop = threading.Event()
    too_long = threading.Timer(60, stop.set)
    too_long.start()
    with pytest.raises(StartRefused, match="bring the old aggregates back"):
        run_standby(counting.plan, settings, 0, "made", stop, lambda paces: None)
    too_long.cancel()
    assert read_run_file(standby_file_path(settings.var_dir, counting.id, 0))["state"] == "ERROR"
    InstanceDirectory(settings.state_dir, counting.id, "standby-0").close()

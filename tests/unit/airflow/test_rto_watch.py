"""The watch over `rto_s`: one alert per standstill, whoever checks, with real files and fake instances."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.support.airflow.stream_bench import Bench
from tests.support.alert_notes import NOTE, NOTES_FILE, noted
from tests.support.overview import write_launch

from tidemark.checks import liveness_sampling
from tidemark.checks.liveness import CHECK, Input
from tidemark.checks.verdict_table import past_verdicts
from tidemark.database import FactsDatabase
from tidemark.events.event import EventKind
from tidemark.events.table import EventReader
from tidemark.kafka import availability
from tidemark.names import TopicPartition
from tidemark.processes import Identity, Place, wait_until
from tidemark.settings import Settings
from tidemark.supervision import watch_claim
from tidemark.supervision.hold import Hold, release_hold, take_hold
from tidemark.supervision.instance_files import read_json, write_json
from tidemark.supervision.standstill_file import Standstill
from tidemark.supervision.stop import is_paused
from tidemark_airflow import rto_watch, stream_trigger
from tidemark_airflow.pausing import stop_launched
from tidemark_airflow.rto_watch import RtoWatch, forget_standstill, rto_watched
from tidemark_airflow.stream_trigger import BackoffTrigger, BrokerTrigger, HoldTrigger, StreamTrigger

RTO_S = 300
# Files that are written now are later than every look of a test.
T = int(time.time() * 1000) - 3_600_000


class Watched:
    """An instance by its files, and what was told of it."""

    def __init__(self, bench: Bench, notes: Path) -> None:
        self.bench = bench
        self.files = bench.files
        self.notes = notes
        self.waits: list[Input | Exception] = []
        self.asked = 0
        self.watch = self.another()
        self.process: psutil.Popen | None = None

    def another(self) -> RtoWatch:
        """As after a restart of the triggerer, or in another trigger."""
        return RtoWatch(self.files, self._ask)

    def _ask(self, run: object, settings: Settings) -> Input:
        self.asked += 1
        answer = self.waits.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def says(self, state: str, rate: float = 0.0) -> None:
        """A process that does nothing is the instance."""
        if self.process is None:
            self.process = psutil.Popen(["sleep", "600"])
        write_json(
            self.files.run,
            {
                **asdict(Identity.of(self.process.pid)),
                "application_id": self.files.key.application_id,
                "topology_version": "7",
                "state": state,
                "records_per_second": rate,
            },
        )

    def ends(self) -> None:
        """The process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def alerts(self) -> list[dict[str, Any]]:
        return noted(self.notes)

    def history(self) -> list[str]:
        found = past_verdicts(FactsDatabase(Settings.load()), self.files.key.application_id, CHECK)
        return [f"{row.finding.verdict}: {row.finding.message}" for row in found]

    def events(self) -> list[str]:
        return [
            str(e.kind) for e in EventReader(FactsDatabase(Settings.load()), self.files.key.application_id, 0).new()
        ]


@pytest.fixture
def watched(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    notes = tmp_path / "notes"
    for name, value in {
        "TIDEMARK_VAR_DIR": str(bench.settings.var_dir),
        "TIDEMARK_ALERT_CALLBACK": NOTE,
        "TIDEMARK_RTO_S": str(RTO_S),
        NOTES_FILE: str(notes),
    }.items():
        monkeypatch.setenv(name, value)
    made = Watched(bench, notes)
    yield made
    made.ends()


def test_should_alert_once_when_nothing_runs_for_too_long_and_report_when_that_is_over(watched: Watched) -> None:
    watched.watch.look(T)
    watched.watch.look(T + 300_000)
    assert watched.alerts() == []
    for seconds in (301, 302, 900):
        # Each time by another: the file is what knows.
        watched.another().look(T + seconds * 1000)
    (alert,) = watched.alerts()
    key = watched.files.key
    assert (alert["what"], alert["application_id"], alert["severity"]) == ("RTO missed", key.application_id, "critical")
    assert alert["message"].startswith(
        f"{key} has made no progress for 301 s: no process of it runs; the limit is 300 s (rto_s)"
    )
    assert len(watched.history()) == 1
    watched.says("RUNNING", rate=5.0)
    watched.another().look(watched.files.run.stat().st_mtime_ns // 1_000_000)
    assert watched.history()[0].startswith("ok: makes progress again after ")
    assert watched.events() == [EventKind.STANDSTILL, EventKind.STANDSTILL_END]
    assert not watched.files.standstill.exists()
    assert len(watched.alerts()) == 1


def test_should_ask_the_broker_only_when_an_instance_runs_and_commits_nothing(watched: Watched) -> None:
    watched.says("RUNNING", rate=5.0)
    now_ms = watched.files.run.stat().st_mtime_ns // 1_000_000
    watched.watch.look(now_ms)
    assert watched.asked == 0
    watched.says("RUNNING")
    watched.waits = [Input(0, 70), Input(4, 70), ConnectionError("no broker"), Input(4, 70), Input(4, 70)]
    for number in range(3):
        watched.watch.look(now_ms + number * 1000)
    assert watched.asked == 1, "not every second"
    assert not watched.files.standstill.exists()
    for seconds in (10, 20, 30, 311):
        watched.watch.look(now_ms + seconds * 1000)
    (alert,) = watched.alerts()
    assert "has made no progress for 301 s: it runs and commits nothing while 4 offsets wait" in alert["message"]


def test_should_ignore_the_rate_of_an_instance_that_has_gone_silent(watched: Watched) -> None:
    watched.says("RUNNING", rate=5.0)
    written_ms = watched.files.run.stat().st_mtime_ns // 1_000_000
    watched.waits = [Input(4, 70)]
    watched.watch.look(written_ms + 29_000)
    assert watched.asked == 0
    watched.watch.look(written_ms + 31_000)
    assert watched.asked == 1


def test_should_take_no_rate_for_progress_when_the_clock_was_set_back(watched: Watched) -> None:
    watched.says("RUNNING", rate=5.0)
    set_back_ms = watched.files.run.stat().st_mtime_ns // 1_000_000 - 3_600_000
    watched.waits = [Input(4, 70)]
    watched.watch.look(set_back_ms)
    assert watched.asked == 1


def test_should_ask_the_broker_again_when_the_clock_was_set_back(watched: Watched) -> None:
    watched.says("RUNNING")
    now_ms = watched.files.run.stat().st_mtime_ns // 1_000_000
    watched.waits = [Input(4, 70), Input(4, 70)]
    for at_ms in (now_ms, now_ms - 3_600_000):
        watched.watch.look(at_ms)
    assert watched.asked == 2


@pytest.mark.parametrize("kind", [BackoffTrigger, BrokerTrigger])
def test_should_wait_no_longer_before_a_relaunch_when_the_clock_is_set_back(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, kind: type[BackoffTrigger | BrokerTrigger]
) -> None:
    monkeypatch.setattr(stream_trigger, "_SETTLE_S", 0.0)
    some_away = availability.Outage("no broker leads pulse[0]", is_partial=True)
    monkeypatch.setattr(availability, "find_outage", lambda *_: some_away)
    real, back_s = time.time, [0.0]
    monkeypatch.setattr(stream_trigger.time, "time", lambda: real() - back_s[0])
    key = watched.files.key
    trigger = kind(str(watched.files.var_dir), key.application_id, key.instance, until=real() + 0.5)

    async def wait() -> None:
        waiting = asyncio.create_task(anext(trigger.run()))
        await asyncio.sleep(0)
        back_s[0] = 3600.0
        await asyncio.wait_for(waiting, 60)

    asyncio.run(wait())


def test_should_count_the_time_of_a_restore_and_of_a_hold_and_name_them(watched: Watched) -> None:
    watched.says("RESTORING")
    watched.watch.look(T)
    watched.watch.look(T + 301_000)
    watched.ends()
    forget_standstill(watched.files)
    take_hold(watched.files.var_dir, watched.files.key.application_id, Hold("c7", "a restore", 5))
    watched.watch.look(T + 400_000)
    watched.watch.look(T + 701_000)
    messages = [alert["message"] for alert in watched.alerts()]
    assert "it is RESTORING" in messages[0]
    assert "held by c7: a restore" in messages[1]


def test_should_count_no_time_while_its_dag_is_paused_and_count_again_when_that_is_over(watched: Watched) -> None:
    """The pause began while the task waited, so its trigger goes on to watch."""
    files = watched.files
    write_launch(files.var_dir, files.key.application_id, 0, Place.here(), Identity(1 << 22, 1.0, "b"))
    watched.watch.look(T)
    assert stop_launched(watched.bench.settings, files.key.application_id) == []
    for after_s in (10, 160, 310, 460):
        # `stream_pauses` records it once a minute.
        assert stop_launched(watched.bench.settings, files.key.application_id) == []
        os.utime(files.pause, (T / 1000 + after_s - 60, T / 1000 + after_s - 60))
        watched.watch.look(T + after_s * 1000)
        assert not files.standstill.exists()
    watched.watch.look(T + 580_000)
    watched.watch.look(T + 870_000)
    assert watched.alerts() == []
    watched.watch.look(T + 881_000)
    assert len(watched.alerts()) == 1


def test_should_record_each_minute_that_a_dag_is_still_paused(watched: Watched) -> None:
    files, settings = watched.files, watched.bench.settings
    write_launch(files.var_dir, files.key.application_id, 0, Place.here(), Identity(1 << 22, 1.0, "b"))
    stop_launched(settings, files.key.application_id)
    os.utime(files.pause, (1, 1))
    now_ms = int(time.time() * 1000)
    assert not is_paused(files, "l1", now_ms)
    stop_launched(settings, files.key.application_id)
    assert is_paused(files, "l1", now_ms)
    assert not is_paused(files, "another launch", now_ms)


def test_should_pass_over_a_pause_that_cannot_be_recorded_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the instances after it would not be stopped."""
    files, settings = watched.files, watched.bench.settings
    write_launch(files.var_dir, files.key.application_id, 0, Place.here(), Identity(1 << 22, 1.0, "b"))
    stop_launched(settings, files.key.application_id)

    def refuses(_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuses)
    assert stop_launched(settings, files.key.application_id) == []


def test_should_end_a_reported_standstill_in_the_history_when_it_is_forgotten(watched: Watched) -> None:
    watched.watch.look(T)
    forget_standstill(watched.files)
    assert watched.history() == []
    watched.watch.look(T)
    watched.watch.look(T + 301_000)
    forget_standstill(watched.files)
    newest, missed = watched.history()
    assert newest.startswith("ok: was stopped or started on purpose after ")
    assert missed.startswith("failed: ")
    forget_standstill(watched.files)
    assert len(watched.history()) == 2


def test_should_not_write_back_a_standstill_that_was_forgotten_during_a_look(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger ends and forgets the standstill while a look waits for a broker."""
    watched.says("RUNNING")
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(watched.files.var_dir))
    asked, answers = threading.Event(), threading.Event()

    def ask(_run: object, _settings: Settings) -> Input:
        asked.set()
        assert answers.wait(60)
        return Input(4, 70)

    monkeypatch.setattr(rto_watch, "input_of", ask)

    async def watch() -> list[threading.Thread]:
        async with rto_watched(watched.files):
            assert await asyncio.to_thread(asked.wait, 60)
            return [thread for thread in threading.enumerate() if thread.name.startswith("rto of")]

    looking = asyncio.run(watch())
    forget_standstill(watched.files)
    answers.set()
    for thread in looking:
        thread.join(60)
    assert looking
    assert not watched.files.standstill.exists()


@pytest.mark.parametrize("sources", [[["clicks", "users"], ["views"]], [["renamed"]], None])
def test_should_take_the_sources_from_the_instance_and_know_nothing_without_them(
    watched: Watched, sources: list[list[str]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The triggerer may have imported the topology before an upgrade that renames its topics."""
    asked: list[TopicPartition] = []

    def offsets(places: list[TopicPartition]) -> dict[TopicPartition, int]:
        asked.extend(places)
        return dict.fromkeys(places, 0)

    ends = SimpleNamespace(beginnings=offsets, stable=lambda places: dict.fromkeys(places, 7))
    monkeypatch.setattr(liveness_sampling, "EndOffsets", lambda *_: ends)
    monkeypatch.setattr(liveness_sampling, "committed_offsets", lambda *_: {})
    monkeypatch.setattr(liveness_sampling, "last_commit_records", lambda *_, **__: {})
    write_json(watched.files.standstill, {"since_ms": T, "why": "it was down"})
    watched.says("RUNNING")
    run = read_json(watched.files.run)
    assert isinstance(run, dict)
    named = {} if sources is None else {"sources": sources}
    write_json(watched.files.run, {**run, "topology": "none_of_this_name", "partitions": ["clicks[1]"], **named})
    RtoWatch(watched.files).look(T + 1000)
    kept = Standstill.of(read_json(watched.files.standstill))
    assert kept is not None
    assert kept.since_ms == T
    if sources == [["clicks", "users"], ["views"]]:
        assert asked == [TopicPartition("clicks", 1), TopicPartition("users", 1)]
        assert kept.why == "it runs and commits nothing while 14 offsets wait"
    else:
        assert (asked, kept.why) == ([], "it was down")


def test_should_record_an_alert_whose_callback_outlasts_the_watch(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.says("RESTORING")
    watched.watch.look(T)
    monkeypatch.setattr(rto_watch, "raise_alert", lambda *_: watched.watch.end())
    watched.watch.look(T + 301_000)
    kept = Standstill.of(read_json(watched.files.standstill))
    assert kept is not None
    assert kept.is_told


def test_should_not_watch_when_there_is_no_deadline(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_RTO_S", "0")
    watch = watched.another()
    watch.look(T)
    watch.look(T + 10_000_000)
    assert (watched.alerts(), watched.files.standstill.exists()) == ([], False)


def test_should_alert_once_even_when_nothing_can_be_written_to_disk(watched: Watched) -> None:
    watched.watch.look(T)
    watched.watch.look(T + 200_000)
    # Neither the file that remembers it nor the database of facts.
    folder = watched.files.standstill.parent
    (folder.parent / "facts.db").mkdir()
    scratch = folder / f"{watched.files.standstill.name}.{threading.get_native_id()}.tmp"
    scratch.mkdir()
    for seconds in (301, 302, 303):
        watched.watch.look(T + seconds * 1000)
    assert len(watched.alerts()) == 1


def test_should_count_the_time_when_the_disk_was_full_before_the_standstill_began(watched: Watched) -> None:
    files = watched.files
    files.make_folders()
    scratch = files.standstill.with_name(f"{files.standstill.name}.{threading.get_native_id()}.tmp")
    scratch.mkdir()
    for seconds in (0, 2, 300):
        watched.watch.look(T + seconds * 1000)
    assert watched.alerts() == []
    for seconds in (301, 303):
        watched.watch.look(T + seconds * 1000)
    (alert,) = watched.alerts()
    assert "has made no progress for 301 s" in alert["message"]
    assert not files.standstill.exists()
    scratch.rmdir()
    watched.watch.look(T + 305_000)
    kept = Standstill.of(read_json(files.standstill))
    assert kept is not None
    assert (kept.since_ms, kept.is_told) == (T, True)
    forget_standstill(files)
    watched.watch.look(T + 307_000)
    kept = Standstill.of(read_json(files.standstill))
    assert kept is not None
    assert (kept.since_ms, kept.is_told) == (T + 307_000, False)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_should_check_the_deadline_without_a_claim_unless_another_watcher_has_one(
    watched: Watched, is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has recorded itself, and the disk was full when its trigger began."""
    monkeypatch.setattr(rto_watch, "_LOOK_S", 0.05)
    monkeypatch.setattr(stream_trigger, "_TAKE_AGAIN_S", 600.0)
    watched.says("RESTORING")
    assert watch_claim.take(watched.files, "operator")
    looks: list[int] = []
    monkeypatch.setattr(rto_watch.RtoWatch, "look", lambda _self, now_ms: looks.append(now_ms))
    key = watched.files.key
    trigger = StreamTrigger(str(watched.files.var_dir), key.application_id, key.instance, launch_id=None)
    asked: list[bool] = []
    checks = trigger._is_last

    def is_asked() -> bool:
        asked.append(checks())
        return asked[-1]

    monkeypatch.setattr(trigger, "_is_last", is_asked)

    def refuse(_files: object, _watcher: str) -> bool:
        if is_replaced:
            write_json(watched.files.watcher, {"watcher": "another trigger"})
        return False

    monkeypatch.setattr(watch_claim, "take", refuse)

    async def watch() -> None:
        async def first() -> None:
            async for _ in trigger.run():
                return

        watching = asyncio.create_task(first())
        assert await asyncio.to_thread(wait_until, lambda: len(asked) > 2, 60)
        watching.cancel()

    asyncio.run(watch())
    assert (len(looks) > 0) is not is_replaced


def test_should_only_log_errors_of_the_watch_itself(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.files.standstill.mkdir()
    watched.watch.look(T)
    assert "failed to check whether it makes progress" in caplog.text


@pytest.mark.parametrize("kind", ["hold", "backoff"])
def test_should_watch_the_deadline_while_a_trigger_waits(
    watched: Watched, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_RTO_S", "1")
    monkeypatch.setattr(rto_watch, "_LOOK_S", 0.05)
    monkeypatch.setattr(stream_trigger, "_SETTLE_S", 0.0)
    monkeypatch.setattr(stream_trigger, "_POLL_S", 0.05)
    var_dir, key = watched.files.var_dir, watched.files.key
    take_hold(var_dir, key.application_id, Hold("c7", "a restore", 5))
    of = (str(var_dir), key.application_id, key.instance)
    trigger = HoldTrigger(*of) if kind == "hold" else BackoffTrigger(*of, until=9e12)

    async def wait_and_see() -> None:
        async def first() -> None:
            async for _ in trigger.run():
                return

        waiting = asyncio.create_task(first())
        alerted = await asyncio.to_thread(wait_until, lambda: len(watched.alerts()) > 0, 60)
        assert alerted
        release_hold(var_dir, key.application_id, "c7")
        if kind == "hold":
            await asyncio.wait_for(waiting, 60)
        waiting.cancel()

    asyncio.run(wait_and_see())
    (alert,) = watched.alerts()
    assert "held by c7: a restore" in alert["message"]

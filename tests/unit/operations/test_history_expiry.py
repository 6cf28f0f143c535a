"""The history that is removed, and the history that never is."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

import pytest

from tidemark.audit.table import AUDITS
from tidemark.checks.store_growth import StoreSample, append, history_path, read
from tidemark.checks.verdict_table import past_verdicts, write_verdicts
from tidemark.database import FactsDatabase
from tidemark.events.event import Event, EventKind
from tidemark.events.table import EventReader, write_event
from tidemark.operations import history_expiry
from tidemark.operations.history_expiry import plan_expiry, remove_expired
from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.run_file import RunFile
from tidemark.verdict import Finding, Verdict

DAY_MS = 86_400_000
NOW_MS = 1000 * DAY_MS


@pytest.fixture
def settings(tmp_path):
    return Settings.load(
        var_dir=tmp_path / "var",
        state_dir=tmp_path / "state",
        facts_kept_days=10,
        pages_kept_days=20,
        logs_kept_days=30,
    )


@pytest.fixture
def facts(settings):
    made = FactsDatabase(settings)
    yield made
    made.close()


def audited(facts, task, batch, days):
    position = {"topology_version": "1", "commit_time_ms": 1, "next_offsets": {}, "stream_times": {}, "outputs": {}}
    row = {"application_id": "app", "audit_id": f"a{batch}", "time_ms": NOW_MS - days * DAY_MS, "task": task}
    row |= {"first_batch": batch, "last_batch": batch, "records": 1, "seconds": 1.0, "verdict": "ok"}
    facts.insert(AUDITS, [{**row, "position": json.dumps({**position, "commits_from": 0})}])


def aged(path, days):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("12345")
    os.utime(path, times=((NOW_MS / 1000 - days * 86_400),) * 2)
    return path


def remove(settings, facts):
    logs = settings.var_dir / "airflow" / "logs"
    plan = plan_expiry(settings, facts, logs, NOW_MS)
    remove_expired(plan, facts)
    return plan


def test_should_remove_rows_older_than_the_settings_allow_and_keep_the_newest_audit_of_each_task(settings, facts):
    for days in (9, 10, 11):
        at_ms = NOW_MS - days * DAY_MS
        write_event(facts, Event(EventKind.STATE, "app", "1", 0, at_ms, {}))
        write_verdicts(facts, "app", "lag", at_ms, [Finding("s", Verdict.OK, f"{days}", {})])
    for task, batch, days in (("0_0", 1, 50), ("0_0", 2, 40), ("0_1", 1, 50), ("0_1", 2, 5)):
        audited(facts, task, batch, days)
    plan = remove(settings, facts)
    assert {found.table: found.rows for found in plan.rows} == {"events": 1, "verdicts": 1, "audits": 2}
    assert [event.time_ms for event in EventReader(facts, "app", 0).new()] == [NOW_MS - d * DAY_MS for d in (9, 10)]
    assert {past.finding.message for past in past_verdicts(facts, "app")} == {"9", "10"}
    columns = [AUDITS.c.task, AUDITS.c.last_batch]
    left = {(row.task, row.last_batch) for row in facts.read(AUDITS.select().with_only_columns(*columns))}
    assert left == {("0_0", 2), ("0_1", 2)}, "an audit goes on from the newest, however old it is"


def test_should_give_the_space_of_removed_rows_back_to_the_disk(settings, facts, monkeypatch):
    monkeypatch.setattr(history_expiry, "_ROWS_AT_ONCE", 70)
    message = "m" * 10_000
    for days in [11] * 6 + [9]:
        findings = [Finding("s", Verdict.OK, message, {})] * 40
        write_verdicts(facts, "app", "lag", NOW_MS - days * DAY_MS, findings)

    def size() -> int:
        # Only what is no longer in the write-ahead log is in the file.
        with closing(sqlite3.connect(settings.var_dir / "facts.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return (settings.var_dir / "facts.db").stat().st_size

    before = size()
    plan = remove(settings, facts)
    assert [found.rows for found in plan.rows] == [240]
    assert len(list(past_verdicts(facts, "app"))) == 40
    assert before > 2_800_000
    assert size() < 800_000


def test_should_remove_old_samples_of_the_sizes_of_stores(settings, facts):
    def sample(days):
        return StoreSample(NOW_MS - days * DAY_MS, "app", "0_0", "n", "0", 1, 2, 3, 4)

    old, new = history_path(settings.var_dir, "old"), history_path(settings.var_dir, "new")
    append(old, [sample(days) for days in (12, 11, 10, 9)])
    append(new, [sample(10)])
    inode = new.stat().st_ino
    plan = remove(settings, facts)
    assert [(found.path, found.samples) for found in plan.samples] == [(old, 2)]
    assert list(plan.lines()) == [f"2 samples of the sizes of stores in {old}"]
    assert read(old) == [sample(10), sample(9)]
    assert (read(new), new.stat().st_ino) == ([sample(10)], inode)
    forever = settings.model_copy(update={"facts_kept_days": 0})
    assert plan_expiry(forever, facts, settings.var_dir, NOW_MS + 100 * DAY_MS).samples == ()


def test_should_remove_pages_and_logs_that_are_no_longer_written(settings, facts):
    var = settings.var_dir
    gone = [
        aged(var / "audit" / "app" / "pages" / "1.html", 21),
        aged(var / "audit" / "app" / "quarantine" / "1.jsonl", 21),
        aged(var / "log" / "instances" / "app-0.log.1", 31),
        aged(var / "airflow" / "logs" / "dag_id=d" / "run_id=old" / "task_id=t" / "attempt=1.log", 31),
    ]
    kept = [
        aged(var / "audit" / "app" / "pages" / "2.html", 19),
        aged(var / "log" / "instances" / "app-0.log", 29),
        aged(var / "airflow" / "logs" / "dag_id=d" / "run_id=new" / "task_id=t" / "attempt=1.log", 29),
        aged(var / "oncall" / "app" / "c1" / "report.html", 400),
        aged(var / "savepoints" / "app" / "1" / "part.log", 400),
    ]
    plan = remove(settings, facts)
    assert sorted(path for kind in plan.files for path in kind.paths) == sorted(gone)
    assert [kind.bytes for kind in plan.files] == [10, 10]
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)
    assert [path.name for path in (var / "airflow" / "logs" / "dag_id=d").iterdir()] == ["run_id=new"]


def test_should_keep_a_log_that_was_written_since_the_plan(settings, facts):
    log = aged(settings.var_dir / "log" / "instances" / "app-0.log", 31)
    plan = plan_expiry(settings, facts, settings.var_dir, NOW_MS)
    aged(log, 0)
    remove_expired(plan, facts)
    assert log.exists()


@pytest.mark.parametrize("is_standby", [False, True])
def test_should_keep_the_log_of_a_process_that_lives_and_writes_nothing(settings, facts, is_standby):
    files = [InstanceFiles(settings.var_dir, InstanceKey("my-app", number, is_standby)) for number in (0, 1)]
    logs = [aged(one.log, 31) for one in files]
    earlier, start = (aged(logs[0].with_name(f"{logs[0].name}.{part}"), 31) for part in ("1", "start"))
    RunFile(files[0].run, {}).update({"state": "RUNNING"}, now=True)
    remove(settings, facts)
    assert [path.exists() for path in (*logs, earlier, start)] == [True, False, False, True]


def test_should_remove_nothing_when_the_settings_say_so(settings, facts):
    write_event(facts, Event(EventKind.STATE, "app", "1", 0, 1, {}))
    aged(settings.var_dir / "log" / "instances" / "app-0.log", 900)
    none = settings.model_copy(update={"facts_kept_days": 0, "pages_kept_days": 0, "logs_kept_days": 0})
    plan = plan_expiry(none, facts, settings.var_dir, NOW_MS)
    assert (plan.rows, plan.files) == ((), ())

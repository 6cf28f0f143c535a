"""The database of facts: its tables, several processes at once, and the message when it is away."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest
from sqlalchemy import select
from tests.support.event_writing import write
from tests.support.events import state_event

from tidemark import database
from tidemark.checks.verdict_table import VERDICTS, write_verdicts
from tidemark.database import FactsDatabase
from tidemark.errors import ExitCode, FactsUnavailable, InvalidSettings
from tidemark.events import table as events_module
from tidemark.events.table import EVENTS, EventReader, write_event
from tidemark.settings import Settings
from tidemark.verdict import Finding, Verdict

PASSWORD = "hunter2"
PROCESSES, EACH = 4, 60


@pytest.fixture
def settings(tmp_path):
    """No broker is needed here; the folder does not exist yet."""
    return Settings.load(var_dir=tmp_path / "not" / "yet")


@pytest.fixture
def facts(settings):
    return FactsDatabase(settings)


def with_url(settings, url):
    return Settings.load(var_dir=settings.var_dir, facts_url=url)


def test_should_be_a_file_in_the_var_folder_that_readers_do_not_lock(facts, settings):
    write_event(facts, state_event("RUNNING"))
    file = settings.var_dir / "facts.db"
    assert facts.name == f"sqlite {file}"
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT kind, instance FROM events").fetchall() == [("state", 0)]


def test_should_wait_for_other_writers_although_another_has_written_the_new_file_first(facts, settings, monkeypatch):
    file = settings.var_dir / "facts.db"
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE first (n)")
        tries = []

        def commit(pause_s):
            tries.append(pause_s)
            other.execute("COMMIT")

        monkeypatch.setattr(database._switch_to_wal.retry, "sleep", commit)
        with closing(facts._engine.raw_connection()) as connection:
            (timeout_ms,) = connection.cursor().execute("PRAGMA busy_timeout").fetchone()
    assert len(tries) == 1
    assert timeout_ms == 1000 * database._BUSY_TIMEOUT_S


def test_should_be_written_by_several_processes_at_once(facts, settings):
    context = multiprocessing.get_context("spawn")
    at_once = context.Barrier(PROCESSES)
    writers = [
        context.Process(target=write, args=(str(settings.var_dir), number, EACH, at_once))
        for number in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    assert [writer.exitcode for writer in writers] == [0] * PROCESSES
    found = list(EventReader(facts, "app", 0).new())
    for number in range(PROCESSES):
        assert [event.time_ms for event in found if event.instance == number] == list(range(EACH))


def test_should_wait_when_another_process_creates_the_file(facts, settings, monkeypatch):
    settings.var_dir.mkdir(parents=True)
    with sqlite3.connect(settings.var_dir / "facts.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        waited = []
        # Of the library that retries alone, as other threads of this process sleep, too.
        slept = SimpleNamespace(sleep=lambda s: (waited.append(s), other.execute("COMMIT")))
        monkeypatch.setattr("tenacity.nap.time", slept)
        write_event(facts, state_event("RUNNING"))
    assert len(waited) == 1
    assert len(facts.read(select(EVENTS))) == 1


def test_should_create_the_file_again_when_it_was_removed(facts, settings):
    write_event(facts, state_event("RUNNING"))
    for file in settings.var_dir.glob("facts.db*"):
        file.unlink()
    with pytest.raises(FactsUnavailable, match="no such table"):
        write_event(facts, state_event("REBALANCING"))
    write_event(facts, state_event("RUNNING"))
    assert len(facts.read(select(EVENTS))) == 1


def test_should_write_all_rows_or_none(facts):
    row = {"application_id": "app", "topology_version": "1", "instance": 0, "time_ms": 1, "kind": "state", "body": "{}"}
    with pytest.raises(FactsUnavailable):
        facts.insert(EVENTS, [row, row | {"kind": None}])
    assert facts.read(select(EVENTS)) == []


def test_should_read_each_event_once_in_the_order_of_writing(facts):
    written = [state_event("RUNNING", time_ms=at, instance=at % 2) for at in (30, 10, 20)]
    for event in [*written, state_event("RUNNING", app="other"), state_event("RUNNING", time_ms=9)]:
        write_event(facts, event)
    reader = EventReader(facts, "app", 10)
    assert list(reader.new()) == written
    assert list(reader.new()) == []
    later = state_event("ERROR", time_ms=40)
    write_event(facts, later)
    assert list(reader.new()) == [later]


def test_should_read_a_row_that_is_committed_after_one_with_a_larger_id(facts, monkeypatch):
    monkeypatch.setattr(events_module, "_LATE_IDS", 2)
    row = {"application_id": "app", "topology_version": "1", "instance": 0, "kind": "state", "body": "{}"}
    reader = EventReader(facts, "app", 0)

    def read(*ids):
        if ids:
            facts.insert(EVENTS, [row | {"id": number, "time_ms": number} for number in ids])
        return [event.time_ms for event in reader.new()]

    assert read(1, 3, 4, 6) == [1, 3, 4, 6]
    assert read(5) == [5]
    assert read(2) == [], "too late"
    assert read() == []


def test_should_say_in_one_line_that_the_database_is_away_and_what_to_do(settings, tmp_path):
    (tmp_path / "file").write_text("")
    facts = FactsDatabase(with_url(settings, f"sqlite:///{tmp_path}/file/facts.db"))
    with pytest.raises(
        FactsUnavailable, match=r"sqlite .*file/facts\.db, does not answer: .*TIDEMARK_FACTS_URL"
    ) as away:
        facts.read(select(EVENTS))
    assert "\n" not in str(away.value)
    assert away.value.exit_code is ExitCode.RETRY


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"no url {PASSWORD}", "not a database URL"),
        (f"postgresql://me:{PASSWORD}@db:port/facts", "not a database URL"),
        (f"nosuchdatabase://me:{PASSWORD}@db/facts", "no driver for nosuchdatabase"),
        (f"mysql+nosuchdriver://me:{PASSWORD}@db/facts", "no driver for mysql\\+nosuchdriver"),
    ],
)
def test_should_refuse_an_address_that_cannot_be_used_without_showing_it(settings, url, says):
    with pytest.raises(InvalidSettings, match=f"setting facts_url: {says}") as refused:
        FactsDatabase(with_url(settings, url))
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None


def test_should_not_show_a_secret_that_the_drivers_message_contains(settings, tmp_path, monkeypatch):
    secret = f"sqlite:///{tmp_path}/{PASSWORD}"
    facts = FactsDatabase(with_url(settings, secret))

    def repeats(*_):
        raise OSError(f"cannot reach {secret}")

    monkeypatch.setattr(facts, "_make_tables", repeats)
    with pytest.raises(FactsUnavailable) as away:
        facts.read(select(EVENTS))
    assert "cannot reach ***" in str(away.value)


def test_should_use_one_connection_for_the_reads_of_a_block(facts, monkeypatch):
    write_event(facts, state_event("RUNNING"))
    made = []
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3.dbapi2, "connect", lambda *given, **named: made.append(given) or real(*given, **named))
    with facts.reading():
        assert len(facts.read(select(EVENTS))) == len(facts.read(select(EVENTS))) == 1
    assert len(made) == 1
    assert len(facts.read(select(EVENTS))) == 1
    assert len(made) == 2


def test_should_tell_whether_rows_were_added(facts):
    assert facts.newest([EVENTS, VERDICTS]) == (0, 0)
    write_event(facts, state_event("RUNNING"))
    before = facts.newest([EVENTS, VERDICTS])
    assert before == facts.newest([EVENTS, VERDICTS])
    write_event(facts, state_event("RESTORING"))
    now = facts.newest([EVENTS, VERDICTS])
    assert (now[0] > before[0], now[1]) == (True, 0)
    assert facts.applications_since([EVENTS, VERDICTS], before) == {"app"}
    assert facts.applications_since([EVENTS, VERDICTS], now) == set()
    write_verdicts(facts, "other", "lag", 5, [Finding("in[0]", Verdict.OK, "no lag")] * 2)
    assert facts.applications_since([EVENTS, VERDICTS], now) == {"other"}
    assert facts.applications_since([EVENTS, VERDICTS], (0, 0)) == {"app", "other"}

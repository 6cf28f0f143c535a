"""`tidemark events`: from the database of facts to a table, lines, JSON."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.events import state_event
from typer.testing import CliRunner

from tidemark.cli import events as command
from tidemark.cli import main
from tidemark.database import FactsDatabase
from tidemark.errors import InvalidTopology
from tidemark.events.event import Event, EventKind
from tidemark.events.table import write_event
from tidemark.settings import Settings

APP = "patient-monitoring"


@pytest.fixture
def facts(tmp_path, monkeypatch):
    """The database that the command finds."""
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    return FactsDatabase(Settings.load())


def at(minutes_ago, new="RUNNING", old="RESTORING", app=APP):
    return state_event(new, old, 1, time.time_ns() // 1_000_000 - minutes_ago * 60_000, app)


def run(*arguments):
    return CliRunner().invoke(main.build(), ["events", "patient_monitoring", *arguments])


def test_should_show_time_instance_kind_and_details(facts):
    write_event(facts, at(5))
    write_event(facts, at(5, app="other"))
    done = run()
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.output.splitlines() if "RUNNING" in line]
    when, instance, kind, what = (cell.strip() for cell in re.split(r" {2,}", row))
    assert len(when) == len("2026-01-01 00:00:00")
    assert (instance, kind, what) == ("1", "state", "RESTORING → RUNNING")


def test_should_print_nothing_that_controls_a_terminal(facts):
    failure = {"error": "ValueError", "message": "no row: \x1b]0;owned\x07\nx"}
    write_event(facts, replace(at(5), kind=EventKind.FAILURE, body=failure))
    done = run()
    assert "ValueError: no row: \\x1b]0;owned\\x07\\nx" in done.output
    assert "\x1b" not in done.output
    assert json.loads(run("--json").stdout)[0]["body"] == failure


@pytest.mark.parametrize(("since", "shown"), [("30m", 1), ("2h", 2), ("1d", 3)])
def test_should_go_back_as_far_as_asked(facts, since, shown):
    for minutes_ago in (300, 90, 5):
        write_event(facts, at(minutes_ago))
    assert run("--since", since).output.count("→ RUNNING") == shown


def test_should_print_all_events_as_one_json_array(facts):
    summary = [at(5), at(4, "ERROR", "RUNNING")]
    for event in summary:
        write_event(facts, event)
    assert [Event.from_json(json.dumps(each)) for each in json.loads(run("--json").stdout)] == summary


@pytest.mark.parametrize(("arguments", "shown"), [((), ""), (("--json",), "[]\n")])
def test_should_say_where_it_looked_and_where_else_to_look_when_there_is_nothing(facts, tmp_path, arguments, shown):
    done = run("--since", "2h", *arguments)
    assert done.exit_code == 0
    assert done.stdout == shown
    (line,) = done.stderr.splitlines()
    for part in (APP, "the last 2h", f"sqlite {tmp_path}/facts.db", f"--topic {APP}-events"):
        assert part in line


def test_should_follow_new_events(facts, monkeypatch):
    write_event(facts, at(5))
    arriving = iter([[at(1, "ERROR", "RUNNING")], [], [at(0, "CREATED", "CREATED")]])

    def pass_time(seconds):
        for event in next(arriving, None) or []:
            write_event(facts, event)
        pass_time.calls += 1
        if pass_time.calls > 4:
            raise KeyboardInterrupt

    pass_time.calls = 0
    # Of this command alone, as other threads of this process sleep, too.
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=pass_time))
    done = run("--follow", "--json")
    assert [json.loads(line)["body"]["new"] for line in done.stdout.splitlines()] == ["RUNNING", "ERROR", "CREATED"]


def test_should_refuse_an_invalid_time_span(facts):
    assert isinstance(run("--since", "yesterday").exception, InvalidTopology)

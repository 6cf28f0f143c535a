"""Readers that work only while somebody looks, and the overview that they make together."""

from __future__ import annotations

import threading

import pytest
from tests.support.overview import write_run_file

from tidemark.checks.verdict_table import write_verdicts
from tidemark.database import FactsDatabase
from tidemark.errors import OutcomeUnknown
from tidemark.overview import sampler as sampler_module
from tidemark.overview.sampler import LoadedTopologies, Sampler, Watched
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.hold import hold_path
from tidemark.topology_loader import load
from tidemark.verdict import Finding, Verdict


def test_a_reader_should_read_once_for_everybody_who_looks():
    calls = []
    watched = Watched("test", 60.0, lambda: calls.append(1) or len(calls))
    assert [watched.reading(60).value for _ in range(10)] == [1] * 10


def test_a_reader_should_not_make_anybody_wait_longer_than_allowed():
    free = threading.Event()
    watched = Watched("test", 0.01, lambda: free.wait(60), unwatched_s=0.0)
    try:
        assert watched.reading(0.05).value is None
    finally:
        free.set()


def test_a_reader_should_stop_and_let_go_when_nobody_looks_and_start_again():
    released = threading.Event()
    watched = Watched("test", 0.01, lambda: 1, released.set, unwatched_s=0.05)
    assert watched.reading(60).value == 1
    assert released.wait(60)
    assert wait_until(lambda: not watched.is_working, 60)
    released.clear()
    assert watched.reading(60).value == 1
    assert released.wait(60)


@pytest.mark.parametrize(
    ("error", "says"),
    [(OutcomeUnknown("no broker answers"), "no broker answers"), (KeyError("secret"), "KeyError: see the log")],
)
def test_a_fault_should_be_shown_and_go_away_by_itself(error, says):
    answers = iter([error, 7])

    def read():
        answer = next(answers, 7)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watched = Watched("test", 0.01, read)
    first = watched.reading(60)
    if first.value is None:
        assert first.fault is not None
        assert says in first.fault
        assert "secret" not in first.fault
    assert wait_until(lambda: watched.reading().value == 7, 60)
    assert watched.reading().fault is None


def test_the_overview_should_show_files_and_history_before_any_broker_has_answered(tmp_path, monkeypatch):
    # On a busy machine the first look at files takes longer than a person is made to wait.
    monkeypatch.setattr("tidemark.overview.sampler._FIRST_S", 60.0)
    # No process listens on this port.
    settings = Settings.load(var_dir=tmp_path, state_dir=tmp_path / "state", bootstrap_servers="127.0.0.1:1")
    plan = load("clicks").plan()
    write_run_file(tmp_path, plan.application_id, records_per_second=5.0)
    sampler = Sampler(settings, LoadedTopologies({"clicks": plan}, {"odd": "no function"}, {"next": "taken"}))
    found = sampler.overview({"clicks": True})
    (app,) = found.applications
    assert (app.state, app.records_per_second, app.is_wanted) == ("Running", 5.0, True)
    assert (found.unloadable, found.copies) == ({"odd": "no function"}, {"next": "taken"})
    assert not found.live_is_known

    def fault():
        return sampler.overview({"clicks": True}).live_fault

    assert wait_until(lambda: fault() is not None, 60)
    assert "no broker answers at 127.0.0.1:1" in fault()
    assert sampler.overview({"clicks": True}).applications[0].records_per_second == 5.0


@pytest.fixture
def history_looks(monkeypatch):
    """A quick look at the history instead of one in 15 s; a list of all looks, and one of all times that it was read."""
    monkeypatch.setattr(sampler_module, "_FIRST_S", 60.0)
    monkeypatch.setattr(sampler_module, "HISTORY_EVERY_S", 0.01)
    looks, read = [], []
    newest, read_history = FactsDatabase.newest, sampler_module.read_history
    monkeypatch.setattr(FactsDatabase, "newest", lambda facts, tables: looks.append(1) or newest(facts, tables))
    monkeypatch.setattr(sampler_module, "read_history", lambda facts, app: read.append(app) or read_history(facts, app))
    return looks, read


def sampler_of(tmp_path, *names):
    settings = Settings.load(var_dir=tmp_path, state_dir=tmp_path / "state", bootstrap_servers="127.0.0.1:1")
    return settings, Sampler(settings, LoadedTopologies({name: load(name).plan() for name in names}, {}, {}))


def checks_of(sampler, topology):
    history = sampler.overview({}).application(topology).history
    return None if history is None else [one.check for one in history.checks]


def keep_verdict(settings):
    facts = FactsDatabase(settings)
    write_verdicts(facts, "clicks", "lag", 5, [Finding("clicks[0]", Verdict.OK, "no lag")])
    facts.close()


def test_the_history_of_an_application_should_be_read_again_when_a_row_was_added(tmp_path, monkeypatch, history_looks):
    monkeypatch.setattr(sampler_module, "_LOOKS_UNTIL_READ", 1_000_000)
    looks, read = history_looks
    settings, sampler = sampler_of(tmp_path, "clicks", "shopping")

    def look_again():
        seen = len(looks)
        # The sampler's threads end 30 s after the last call of `overview`.
        assert wait_until(lambda: bool(sampler.overview({})) and len(looks) > seen + 5, 60)

    assert checks_of(sampler, "clicks") == []
    look_again()
    assert sorted(read) == ["clicks", "shopping"]
    keep_verdict(settings)
    assert wait_until(lambda: checks_of(sampler, "clicks") == ["lag"], 60)
    # A row that is committed between the two queries of a look is found by the next look once more.
    look_again()
    times = len(read)
    look_again()
    assert len(read) == times
    assert read.count("shopping") == 1
    assert checks_of(sampler, "shopping") == []


def test_every_history_should_be_read_again_after_some_time_in_any_case(tmp_path, monkeypatch, history_looks):
    """A row with a smaller id may be committed after one with a larger id."""
    monkeypatch.setattr(FactsDatabase, "newest", lambda facts, tables: (7, 7, 7, 7))
    settings, sampler = sampler_of(tmp_path, "clicks")
    assert checks_of(sampler, "clicks") == []
    keep_verdict(settings)
    assert wait_until(lambda: checks_of(sampler, "clicks") == ["lag"], 60)


def test_a_hold_that_cannot_be_read_should_be_a_fault_of_its_own_application(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler_module, "_FIRST_S", 60.0)
    settings, sampler = sampler_of(tmp_path, "clicks", "shopping")
    write_run_file(tmp_path, "shopping")
    write_run_file(tmp_path, "clicks")
    # Reading a folder as a file is an `OSError` for every user.
    hold_path(settings.var_dir, "clicks").mkdir()
    found = sampler.overview({"clicks": True, "shopping": True})
    clicks, shopping = found.application("clicks"), found.application("shopping")
    assert (clicks.state, clicks.are_files_known) == ("Not known", False)
    assert "clicks.hold.json" in clicks.files_fault
    assert (shopping.state, shopping.files_fault) == ("Running", None)


def test_a_fault_of_the_disk_should_be_that_of_its_own_application(tmp_path, monkeypatch):
    def read_stores(plan, _settings):
        if plan.application_id == "clicks":
            raise OSError("input/output error")
        return []

    monkeypatch.setattr(sampler_module, "read_stores", read_stores)
    _, sampler = sampler_of(tmp_path, "clicks", "shopping")
    assert wait_until(lambda: sampler.overview({}).application("shopping").stores == (), 60)
    clicks = sampler.overview({}).application("clicks")
    assert (clicks.stores, clicks.sizes, clicks.savepoint, clicks.disk_fault) == (
        None,
        None,
        None,
        "input/output error",
    )


def test_an_unexpected_fault_should_be_in_the_log_once(caplog):
    calls = []

    def read():
        calls.append(1)
        raise KeyError("lost")

    watched = Watched("test", 0.01, read)
    assert wait_until(lambda: bool(watched.reading().fault) and len(calls) > 3, 60)
    (logged,) = [record for record in caplog.records if record.name == sampler_module.__name__]
    assert logged.getMessage() == "failed to read the test that the Streams page shows"
    assert logged.exc_info

"""`tidemark savepoint`: tables, JSON, and one line with an exit code when something is wrong."""

from __future__ import annotations

import json
import re

import pytest
from tests.support.savepoints import TASKS, put, save
from typer.testing import CliRunner

from tidemark.cli import main
from tidemark.clock import wall_clock_ms
from tidemark.errors import SavepointFailed, StartRefused
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.supervision.savepoint_ids import new_savepoint_id

APP = "patient-monitoring"
NAME = "patient_monitoring"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """What the commands look at."""
    monkeypatch.setenv("TIDEMARK_SAVEPOINT_LOCATION", str(tmp_path / "savepoints"))
    return SavepointRepository(Settings.load().savepoint_location, APP)


@pytest.fixture
def saved(repository, stores, tmp_path):
    """Two whole savepoints, the newer one last."""
    ids = [new_savepoint_id(wall_clock_ms() - age_ms) for age_ms in (7_200_000, 3_600_000)]
    for number, savepoint_id in enumerate(ids):
        put(stores[TASKS[0]], 10 + number, {7: 3})
        save(repository, stores, tmp_path / "links", savepoint_id)
    return ids


def run(*arguments: str):
    return CliRunner().invoke(main.build(), ["savepoint", *arguments])


def test_should_list_for_people_and_for_programs(repository, saved):
    repository.begin(new_savepoint_id(wall_clock_ms()), wall_clock_ms())
    said = run("list", NAME, "--json")
    rows = json.loads(said.output)
    assert [row["is_complete"] for row in rows] == [False, True, True]
    assert [row["id"] for row in rows[1:]] == saved[::-1]
    assert rows[1]["tasks"] == ["0_0", "0_1"]
    assert rows[1]["total_bytes"] == repository.manifest(saved[1]).total_bytes
    shown = run("list", NAME)
    assert shown.exit_code == 0
    assert all(savepoint_id[:15] in shown.output for savepoint_id in saved)


def test_should_list_and_verify_those_last_that_a_clock_that_was_ahead_has_named(repository, saved, stores, tmp_path):
    ahead = new_savepoint_id(wall_clock_ms() + 48 * 3_600_000)
    save(repository, stores, tmp_path / "links", ahead)
    assert [row["id"] for row in json.loads(run("list", NAME, "--json").output)] == [*saved[::-1], ahead]
    assert f"savepoint {saved[1]}: 2 tasks" in run("verify", NAME).output


def test_should_report_that_there_is_no_savepoint(repository):
    assert "no savepoints of patient-monitoring" in run("list", NAME).output
    with pytest.raises(SavepointFailed, match="no complete savepoint of patient-monitoring"):
        raise run("verify", NAME).exception


def test_should_verify_the_newest_and_end_with_one_when_it_is_damaged(repository, saved, tmp_path):
    good = run("verify", NAME)
    assert (good.exit_code, f"savepoint {saved[1]}: 2 tasks" in good.output) == (0, True)
    older = {file.sha256 for task in TASKS for file in repository.task(saved[0], str(task)).files}
    new = next(f for f in repository.task(saved[1], "0_0").files if f.sha256 not in older and f.size_bytes)
    (tmp_path / "savepoints" / APP / "files" / new.sha256).unlink()
    bad = run("verify", NAME)
    assert bad.exit_code == 1
    assert re.search(rf"savepoint {saved[1]}: {new.name} of store counts of task 0_0: it is missing", bad.output)
    assert run("verify", NAME, saved[0]).exit_code == 0


@pytest.mark.parametrize("name", ["nothing-of-that-name", "20200101T000000-abcdef", "../savepoints"])
def test_should_name_a_savepoint_that_does_not_exist(saved, name):
    shown = re.escape(f"no savepoint {name} of {APP} in ") + f".*; `tidemark savepoint list {NAME}` shows them"
    with pytest.raises(StartRefused, match=shown):
        raise run("verify", NAME, name).exception


@pytest.mark.parametrize(
    ("arguments", "left"),
    [(("--keep", "1"), 1), (("--keep", "2"), 2), ((), 2), (("--max-age", "90m"), 1), (("--keep", "0"), 0)],
)
def test_should_expire_by_the_given_limits(repository, saved, arguments, left):
    assert f"removed {2 - left} savepoints" in run("expire", NAME, *arguments).output
    assert [savepoint.savepoint_id for savepoint in repository.savepoints()] == saved[::-1][:left]


def test_should_expire_by_the_setting_unless_told(repository, saved, monkeypatch):
    monkeypatch.setenv("TIDEMARK_SAVEPOINTS_KEPT", "1")
    assert "removed 1 savepoints" in run("expire", NAME).output


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", "{var}/savepoints"),
        ("elsewhere", "{root}/elsewhere"),
        ("/mnt/elsewhere", "/mnt/elsewhere"),
        ("s3://bucket/elsewhere", "s3://bucket/elsewhere"),
        ("memory://x", "memory://x"),
    ],
)
def test_should_take_a_folder_as_relative_to_the_project_and_a_url_as_it_is(tmp_path, given, found, monkeypatch):
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    settings = Settings.load(var_dir=tmp_path / "v", savepoint_location=given)
    assert settings.savepoint_location == found.format(var=tmp_path / "v", root=tmp_path)

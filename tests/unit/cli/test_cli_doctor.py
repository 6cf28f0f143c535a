"""`tidemark doctor` on a machine where nothing runs: its lines, its exit code, its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.errors import BrokersAway
from tidemark.operations.machine import examination
from tidemark.operations.machine.examination import locked_versions, parse_clock, parse_release

SUBJECTS = [
    "settings", "Python", "Python packages", "Java", "jars of Kafka", "jars of Spark", "disk of state_dir",
    "disk of var_dir", "permissions", "brokers", "Airflow",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path / "var"))
    monkeypatch.setenv("TIDEMARK_STATE_DIR", str(tmp_path / "var" / "state"))
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    # A demo may run on the machine of whoever runs the tests.
    monkeypatch.setattr(examination, "describe_replicas", silence)
    monkeypatch.setattr(examination.ports, "is_free", lambda port: True)


def silence(*_: object) -> NoReturn:
    raise BrokersAway("no route to host")


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["doctor", *arguments])


def lines() -> dict[str, dict[str, str]]:
    said = json.loads(doctor("--json").stdout)
    return {line["subject"]: line for line in said["lines"]}


def test_should_have_a_line_for_each_subject_and_change_nothing(tmp_path: Path) -> None:
    found = lines()
    assert [subject for subject in found if not subject.startswith("port ")] == SUBJECTS
    assert all(set(line) == {"subject", "health", "found", "remedy"} for line in found.values())
    assert {line["subject"] for line in found.values() if line["remedy"]} == {
        line["subject"] for line in found.values() if line["health"] != "ok"
    }
    assert list(tmp_path.iterdir()) == []


def test_should_end_with_one_if_there_is_a_problem_and_say_what_to_do() -> None:
    done = doctor()
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if "jars of Kafka" in line]
    assert line.startswith("problem")
    assert "run `tidemark jars kafka`" in line
    assert "problems: 2" in done.stdout


def test_should_end_with_zero_if_there_are_only_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination.jars, "missing", lambda jars, folder: [])
    done = doctor()
    assert done.exit_code == 0, done.stdout
    assert "problems: 0, warnings: 2" in done.stdout


def test_should_tell_brokers_that_were_configured_from_those_that_nobody_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lines()["brokers"]["health"] == "warning"
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP_SERVERS", "elsewhere:9092")
    found = lines()["brokers"]
    assert (found["health"], found["found"]) == ("problem", "none answers at elsewhere:9092: no route to host")


def test_should_name_a_wrong_setting_and_still_look_at_what_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_COMMIT_INTERVAL_MS", "soon")
    done = doctor("--json")
    found = {line["subject"]: line for line in json.loads(done.stdout)["lines"]}
    assert done.exit_code == 1
    assert list(found) == ["settings", "Python", "Python packages", "Java"]
    assert "commit_interval_ms" in found["settings"]["found"]


def test_should_find_private_files_that_others_can_open(tmp_path: Path) -> None:
    passwords = tmp_path / "var" / "airflow" / "passwords.json"
    passwords.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / "var").chmod(0o700)
    passwords.touch(mode=0o600)
    assert lines()["permissions"]["health"] == "ok"
    passwords.chmod(0o644)
    assert f"{passwords} (0644)" in lines()["permissions"]["found"]


def test_should_report_a_java_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = lines()["Java"]
    assert (found["health"], found["found"]) == ("problem", f"no Java found in JAVA_HOME={tmp_path}")
    assert "install Java 17" in found["remedy"]


def test_should_read_the_versions_of_a_lock_as_uv_writes_it(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(
        "# a comment\nPy_YAML==6.0 \\\n    --hash=sha256:aa\n    # via other==1\n-r more.txt\n"
        'colorama==0.4 ; sys_platform == "win32"\nlast==1.0.post1\n'
    )
    assert locked_versions(lock) == {"py-yaml": "6.0", "last": "1.0.post1"}
    assert locked_versions(tmp_path / "none") is None


def test_should_read_the_release_and_the_clock_from_kafkas_tools() -> None:
    said = "Feature: metadata.version\tSupportedMinVersion: 3.3-IV3\tSupportedMaxVersion: 4.3-IV0\tEpoch: 7"
    assert parse_release(said) == "4.3"
    assert parse_release("not authorised") is None
    rows = [
        {"NodeId": "2", "LastCaughtUpTimestamp": "1", "Status": "Follower"},
        {"NodeId": "1", "LastCaughtUpTimestamp": "1700000000000", "Status": "Leader"},
    ]
    assert parse_clock(rows) == 1_700_000_000_000
    assert parse_clock([{**rows[1], "LastCaughtUpTimestamp": "-1"}]) is None
    assert parse_clock([]) is None

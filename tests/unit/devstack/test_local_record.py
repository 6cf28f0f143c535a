"""The record of what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.devstack import record
from tidemark.devstack.record import AirflowAccess, Service, StackRecord
from tidemark.errors import PreflightFailed
from tidemark.settings import Settings, stack_file


def test_should_read_a_record_as_it_was_written(tmp_path: Path) -> None:
    written = StackRecord(
        stack_id="one",
        started_at=12.5,
        settings={"bootstrap_servers": "127.0.0.1:29092"},
        services={"broker": Service(1, 2.5, "b", 29092, "server.log")},
        airflow=AirflowAccess("http://127.0.0.1:28080", "admin", "passwords.json"),
    )
    record.save(written, tmp_path)
    assert record.load(tmp_path) == written


def test_should_find_the_recorded_broker_in_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    record.save(StackRecord("one", 0.0, settings={"bootstrap_servers": "127.0.0.1:29092"}), tmp_path)
    assert Settings.load().bootstrap_servers == "127.0.0.1:29092"


def test_should_return_none_when_there_is_no_record(tmp_path: Path) -> None:
    assert record.load(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"stack_id": "1", "started_at": 0, "services": {"broker": {}}}']
)
def test_should_name_file_and_remedy_when_a_record_is_damaged(tmp_path: Path, text: str) -> None:
    stack_file(tmp_path).write_text(text)
    with pytest.raises(PreflightFailed, match=r"stack\.json is not a record.*delete it"):
        record.load(tmp_path)


def test_should_write_a_record_that_only_its_owner_can_read(tmp_path: Path) -> None:
    record.save(StackRecord("one", 0.0), tmp_path)
    assert stack_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_should_allow_one_up_or_down_at_a_time(tmp_path: Path) -> None:
    with (
        record.locked(tmp_path),
        pytest.raises(PreflightFailed, match="another `tidemark up` or `down`"),
        record.locked(tmp_path),
    ):
        pass
    with record.locked(tmp_path):
        pass

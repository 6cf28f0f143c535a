"""The record of what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.devstack import record
from tidemark.devstack.record import AirflowAccess, Service, StackRecord
from tidemark.errors import PreflightFailed
from tidemark.settings import Settings, stack_file


def test_a_record_should_be_read_as_it_was_written(tmp_path: Path) -> None:
    written = StackRecord(
        stack_id="one",
        started_at=12.5,
        settings={"bootstrap_servers": "127.0.0.1:29092"},
        services={"broker": Service(1, 2.5, 29092, "server.log")},
        airflow=AirflowAccess("http://127.0.0.1:28080", "admin", "passwords.json"),
    )
    record.save(written, tmp_path)
    assert record.load(tmp_path) == written


def test_every_command_should_find_the_recorded_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    record.save(StackRecord("one", 0.0, settings={"bootstrap_servers": "127.0.0.1:29092"}), tmp_path)
    assert Settings.load().bootstrap_servers == "127.0.0.1:29092"


def test_no_record_should_read_as_none(tmp_path: Path) -> None:
    assert record.load(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"stack_id": "1", "started_at": 0, "services": {"broker": {}}}']
)
def test_a_damaged_record_should_name_the_file_and_the_remedy(tmp_path: Path, text: str) -> None:
    stack_file(tmp_path).write_text(text)
    with pytest.raises(PreflightFailed, match=r"stack\.json is not a record.*delete it"):
        record.load(tmp_path)


def test_a_record_should_be_readable_by_its_owner_alone(tmp_path: Path) -> None:
    record.save(StackRecord("one", 0.0), tmp_path)
    assert stack_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_only_one_up_or_down_should_work_at_a_time(tmp_path: Path) -> None:
    with (
        record.locked(tmp_path),
        pytest.raises(PreflightFailed, match="another `tidemark up` or `down`"),
        record.locked(tmp_path),
    ):
        pass
    with record.locked(tmp_path):
        pass

"""A standby whose number another process has: it is to be started again, and gives up nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.overview import APP, PLAN

from tidemark.errors import ExitCode, TaskLocked
from tidemark.settings import Settings
from tidemark.standby.process import run_standby
from tidemark.stores import directory
from tidemark.stores.directory import InstanceDirectory
from tidemark.supervision.restart_policy import Relaunch, RestartBudget, decide
from tidemark.supervision.run_file import standby_file_path


def test_a_standby_whose_number_is_locked_should_be_relaunched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_LOCK_WAIT_S", 0.1)
    settings = Settings(state_dir=tmp_path / "state", var_dir=tmp_path / "var", bootstrap_servers="127.0.0.1:1")
    holder = InstanceDirectory(settings.state_dir, APP, "standby-0")
    with pytest.raises(TaskLocked, match="locked by process") as raised:
        run_standby(PLAN, settings, 0, "clicks", threading.Event(), lambda _paces: None)
    holder.close()
    assert raised.value.exit_code is ExitCode.RETRY
    assert isinstance(decide(raised.value.exit_code, (), 0.0, RestartBudget(), kind="standby"), Relaunch)
    assert not standby_file_path(settings.var_dir, APP, 0).exists(), "the run file is the holder's"

"""Sends files whose tests share what takes long to start to one worker, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

FORKED_AIRFLOW = "an Airflow without its processes"
TOGETHER = {
    f"tests/integration/{file}": FORKED_AIRFLOW
    for file in (
        "airflow/test_change_dags.py",
        "airflow/test_history_cleanup.py",
        "airflow/test_operations_dags.py",
        "airflow/test_restore_oncall_dag.py",
        "audit/test_audit_dag.py",
    )
}
"""What files share, by their paths: an Airflow takes 15 s of processor time to import."""


class FilesTogether(LoadFileScheduling):
    """As `--dist loadfile`, but files that share something count as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether | None:
    """Take this for `--dist loadfile`."""
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None

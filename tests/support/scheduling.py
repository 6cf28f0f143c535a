"""Sends files whose tests share what takes long to start to one worker, one after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

FORKED_AIRFLOW = "an Airflow without its processes"
"""It takes 15 s of processor time to import."""
THREE_BROKERS = "three brokers"
"""They take 10 s of processor time to start, and a tenth of a core while they run."""
TOGETHER = {
    **dict.fromkeys(
        (
            "tests/integration/airflow/test_change_dags.py",
            "tests/integration/airflow/test_history_cleanup.py",
            "tests/integration/airflow/test_operations_dags.py",
            "tests/integration/airflow/test_restore_oncall_dag.py",
            "tests/integration/audit/test_audit_dag.py",
        ),
        FORKED_AIRFLOW,
    ),
    **dict.fromkeys(
        (
            "tests/integration/checks/test_durability_check.py",
            "tests/integration/devstack/test_broker.py",
            "tests/integration/instance/test_fenced_instance.py",
            "tests/integration/instance/test_offline_sink.py",
            "tests/integration/kafka/test_broker_availability.py",
            "tests/integration/kafka/test_end_offsets.py",
            "tests/integration/kafka/test_lost_controller.py",
            "tests/integration/kafka/test_purge.py",
        ),
        THREE_BROKERS,
    ),
}
"""The test files that share something which takes long to start, and its name."""
_FIXTURES = {"operations": FORKED_AIRFLOW, "cluster": THREE_BROKERS}
_NEXT = pytest.StashKey[str | None]()


def require_known(items: Iterable[pytest.Item]) -> None:
    """Raise `pytest.UsageError` if a test takes a fixture that files share, and its file is not in `TOGETHER`."""
    for item in items:
        file = _file_of(item.nodeid)
        for fixture, shared in _FIXTURES.items():
            if fixture in getattr(item, "fixturenames", ()) and TOGETHER.get(file) != shared:
                raise pytest.UsageError(f"{file} takes the fixture {fixture}: add it to TOGETHER in {__file__}")


def _file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def scope_of(nodeid: str) -> str:
    """Return the scope of a test: the name of the thing that its file shares, else the file. One worker runs a scope."""
    file = _file_of(nodeid)
    return TOGETHER.get(file, file)


class FilesTogether(LoadFileScheduling):
    """As `--dist loadfile`, but files that share something count as one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether | None:
    """Take this for `--dist loadfile`."""
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Note which file comes next, for fixtures that end."""
    item.config.stash[_NEXT] = None if nextitem is None else _file_of(nextitem.nodeid)
    return (yield)


def comes_next(config: pytest.Config, shared: str) -> bool:
    """Whether the file of the next test shares this."""
    return TOGETHER.get(config.stash[_NEXT] or "") == shared

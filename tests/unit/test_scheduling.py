"""Files whose tests share an Airflow without its processes, or three brokers, run on one worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.scheduling import require_known


def item(file: str, *fixtures: str) -> Any:
    return SimpleNamespace(nodeid=f"tests/integration/{file}::test_it", fixturenames=[*fixtures])


def test_should_know_the_files_that_share_what_takes_long_to_start() -> None:
    require_known([item("kafka/test_purge.py", "settings", "cluster"), item("kafka/test_tools.py", "broker")])


@pytest.mark.parametrize(
    ("file", "fixture"),
    [("kafka/test_tools.py", "cluster"), ("airflow/test_hold.py", "operations"), ("kafka/test_purge.py", "operations")],
)
def test_should_refuse_a_file_that_takes_a_shared_fixture_and_is_not_listed(file: str, fixture: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"{file} takes the fixture {fixture}"):
        require_known([item(file, "settings", fixture)])

"""The short form of `make chaos`: a process, the network and the input fail, and all is compared."""

from __future__ import annotations

from argparse import Namespace

import pytest
from rich.console import Console
from tests.system.chaos.run import run
from tests.system.crash.bench import CHEAP

KINDS = [
    "driver: SIGKILL at a step of a commit",
    "network: all connections cut",
    "input: refused by user code",
]


@pytest.mark.crash
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_should_lose_duplicate_and_falsify_nothing_whatever_fails(mark, kafka_jars, spark_jars, tmp_path, monkeypatch):
    for name, value in CHEAP.items():
        monkeypatch.setenv(name, value)
    # Two instances that commit all the time would keep both cores busy for as long as this test takes.
    options = Namespace(
        minutes=0, seed=7, only=KINDS, guarantee="exactly_once", rate=1000, commit_interval=3000, calm=0.0, report=None
    )
    assert run(tmp_path, options, Console()) == 0

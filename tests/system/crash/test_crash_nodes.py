"""Suppress, sessions, a join, a processor with TTL and LRU, and a re-key: exact after kills, too.

`make crash` runs the same application through all scenarios.
"""

from __future__ import annotations

import random

import pytest
from spark_jobs.testing.fixtures import spark
from tests.system.crash.bench import CHEAP
from tests.system.crash.nodes import NodesBench
from tests.system.crash.scenarios import SCENARIOS, kill_at

__all__ = ["spark"]

PARTITIONS = 3
"""As many as there may be instances, so that each can have a task that joins."""

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def make_bench(spark):
    # The instances interpret their queries, and the replay runs generated code: one is compared with the other.
    return lambda bootstrap, folder: NodesBench(bootstrap, folder, 7, spark, PARTITIONS, CHEAP)


def test_should_be_exact_after_a_kill_before_and_after_the_commit_and_between_two_stores(bench, tally):
    # Two sub-topologies take turns, so a kill behind a commit is one between the commits of two of them.
    kill_at(bench, tally, ("5-offsets", "6-commit", "7-one-store"))


@pytest.mark.parametrize("name", ["three-instances"])
def test_should_be_exact_whatever_happens_to_instances(bench, tally, name):
    SCENARIOS[name](bench, tally, random.Random(7), 0)

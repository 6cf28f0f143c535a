"""A part of `make crash` for every test run: the decisive steps, and everything that needs two processes.

`make crash` has all the steps and the random moments.
"""

from __future__ import annotations

import random

import pytest
from tests.system.crash.bench import CHEAP, Bench
from tests.system.crash.scenarios import SCENARIOS, kill_at

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def make_bench():
    return lambda bootstrap, folder: Bench(bootstrap, folder, seed=7, settings=CHEAP)


def test_should_be_exact_after_a_kill_before_and_after_the_commit_and_between_two_stores(bench, tally):
    # The scenario `restore` kills right after the commit, and again while the next instance replays what the stores lack.
    kill_at(bench, tally, ("4-commit-records", "7-one-store"))


@pytest.mark.parametrize(
    "name", ["restore", "second-copy", "two-operators", "two-instances", "stopped", "stopped-alone"]
)
def test_should_be_exact_whatever_happens_to_instances(bench, tally, name):
    SCENARIOS[name](bench, tally, random.Random(7), 0)

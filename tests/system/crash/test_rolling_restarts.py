"""Rolling restarts: one instance after the other is stopped in an orderly way and launched again, and no task moves."""

from __future__ import annotations

import pytest
from tests.support.truth.topics import commits_past, end_offsets
from tests.system.crash.bench import CHEAP, Bench
from tests.system.crash.scenarios import held_partitions

from tidemark.errors import ExitCode
from tidemark.processes import wait_until
from tidemark.supervision.run_file import read_run_file, run_file_path

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

INSTANCES = 3
ROUNDS = 3
SETTINGS = {**CHEAP, "TIDEMARK_SESSION_TIMEOUT_MS": "300000", "TIDEMARK_COMMIT_INTERVAL_MS": "1000"}
"""A session is longer than a restart, however much else the machine has to do. Three instances that commit five times a second
would keep it busy for as long as this test takes."""

FED = 20
"""How many records arrive twice a second: some in every partition for each commit. With many more, nearly every batch would
have bad ones, and Spark reads such a batch three times."""


@pytest.fixture(scope="module")
def make_bench():
    return lambda bootstrap, folder: Bench(bootstrap, folder, 7, INSTANCES, SETTINGS)


def test_should_move_no_task_and_go_on_committing_when_three_instances_are_restarted_three_times(bench, tally):
    numbers = range(INSTANCES)
    running = {number: bench.launch(number) for number in numbers}
    assert wait_until(lambda: all(len(held_partitions(bench, number)) == 1 for number in numbers), 240)
    held = {number: held_partitions(bench, number) for number in numbers}
    generation = max(generation_of(bench, number) for number in numbers)
    with bench.feeder.feeding(FED):
        for _ in range(ROUNDS):
            for number in numbers:
                kept = {other: held[other] for other in numbers if other != number}
                code = bench.stop(running[number])
                assert code == ExitCode.OK
                # The next one has run for the longest time; the one before may still work on its first batch.
                wait_commits(bench, held[(number + 1) % INSTANCES])
                assert {other: held_partitions(bench, other) for other in kept} == kept

                running[number] = bench.launch(number)
                bench.wait_state(running[number], "RUNNING", number)
                assert {each: held_partitions(bench, each) for each in numbers} == held
                # The group gives a task to another instance only in a new generation, which each member that joins is told.
                assert generation_of(bench, number) == generation
            wait_commits(bench, [name for names in held.values() for name in names])
    bench.wait_drained()
    tally.compare(bench, "three instances restarted three times", dict.fromkeys(numbers, "state"))


def generation_of(bench, instance):
    """Return the generation of the group in which an instance has got its tasks."""
    return read_run_file(run_file_path(bench.var_dir, bench.application_id, instance))["generation"]


def wait_commits(bench, names):
    """Wait until records that arrive from now on are committed in these partitions."""
    ends = end_offsets(bench.bootstrap, map(place_of, names), "read_committed")
    assert wait_until(lambda: commits_past(bench.bootstrap, bench.application_id, ends), 120), f"{names} do not commit"


def place_of(name):
    """Return the partition that is written `topic[number]`."""
    topic, _, number = name.rstrip("]").rpartition("[")
    return topic, int(number)

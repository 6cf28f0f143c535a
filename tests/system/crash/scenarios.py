"""The crash scenarios. Each leaves no instance running and has compared everything at its end."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.truth.topics import end_offsets, partitions
from tests.system.crash.bench import Bench

from tidemark.errors import ExitCode
from tidemark.kafka.group import members
from tidemark.names import commits_topic
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.run_file import read_run_file, run_file_path

STEPS = ("1-begin", "2-outputs", "3-changelogs", "4-commit-records", "5-offsets", "6-commit", "7-stores")
MIDDLES = ("2-in-the-middle", "3-in-the-middle", "7-one-store")


@dataclass
class Tally:
    """What was done and what was found, over all scenarios."""

    kills: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    report: list[str] = field(default_factory=list)

    def compare(self, bench: Bench, what: str, holders: dict[int, str] | None = None) -> None:
        """Compare now and add what differs."""
        lost, duplicated, wrong, report = bench.differences(holders)
        self.lost += lost
        self.duplicated += duplicated
        self.wrong += wrong
        self.report += [f"{what}: {line}" for line in report]

    def expect(self, holds: bool, what: str) -> None:
        """A condition of the scenario itself."""
        if not holds:
            self.wrong += 1
            self.report.append(what)

    def killed(self, code: int | None, what: str) -> None:
        """Count a kill, or report an instance that has ended by itself. `code` is its exit code."""
        is_killed = code == -signal.SIGKILL
        self.kills += is_killed
        self.expect(is_killed, f"{what}: the instance was not killed, but ended with {code}")

    def line(self) -> str:
        return f"crash: kills={self.kills} lost={self.lost} duplicated={self.duplicated} wrong={self.wrong}"

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)


def recovered(bench: Bench, tally: Tally, what: str) -> subprocess.Popen[bytes]:
    """Launch instance 0, wait until it has worked everything off, and compare; it runs on."""
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    bench.wait_drained()
    tally.compare(bench, what)
    return running


def kill_at_steps(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """SIGKILL after each of the seven steps, and in the middle of outputs, changelog and the stores' writes."""
    kill_at(bench, tally, (*STEPS, *MIDDLES))


def kill_at(bench: Bench, tally: Tally, points: Sequence[str]) -> None:
    """SIGKILL at each of these points, and compare after each recovery."""
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    for point in points:
        bench.arm(point, skip=1)
        bench.feeder.feed(bench.batch_records)
        tally.killed(bench.wait_ended(running), f"at {point}")
        running = recovered(bench, tally, f"killed at {point}")
    tally.killed(bench.kill(running), "after the last step")


def kill_in_restore(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """SIGKILL while the whole changelog is read, before the rename, and while a tail is replayed."""
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    tally.killed(bench.kill(running), "before a restore")
    for point in ("restore-whole", "restore-before-rename"):
        shutil.rmtree(bench.state_dir(), ignore_errors=True)
        bench.arm(point, skip=1)
        tally.killed(bench.wait_ended(bench.launch()), f"at {point}")
    running = recovered(bench, tally, "killed in the middle of a restore")
    # Killed between the commit and the stores' write, the stores are behind: the next start replays the tail.
    bench.arm("6-commit")
    bench.feeder.feed(bench.batch_records)
    tally.killed(bench.wait_ended(running), "at 6-commit")
    bench.arm("restore-tail")
    tally.killed(bench.wait_ended(bench.launch()), "at restore-tail")
    running = recovered(bench, tally, "killed while replaying a tail")
    tally.expect(bench.stop(running) == ExitCode.OK, "SIGTERM did not end the instance with 0")


def kill_at_random(bench: Bench, tally: Tally, chance: random.Random, n: int) -> None:
    """SIGKILL at moments that nobody chose, start-up included."""
    for kill in range(n):
        bench.feeder.feed(chance.randrange(1000, bench.batch_records))
        running = bench.launch()
        if chance.random() < 0.8:
            bench.wait_state(running, "RUNNING")
            time.sleep(chance.uniform(0.0, 3.0))  # the random moment itself
        else:
            time.sleep(chance.uniform(0.0, 10.0))
        tally.killed(bench.kill(running), f"random kill {kill + 1}")
        if kill % 5 == 4 or kill == n - 1:
            running = recovered(bench, tally, f"killed at random, {kill + 1} times")
            tally.killed(bench.kill(running), f"after {kill + 1} random kills")


def second_copy(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """Another machine starts the same instance: the first is fenced, for good, and nothing is doubled."""
    first = bench.launch()
    bench.wait_state(first, "RUNNING")
    bench.feeder.feed(bench.batch_records)
    second = bench.launch(disk="other", log="second.log")
    bench.feeder.feed(bench.batch_records)
    code = bench.wait_ended(first)
    tally.expect(code == ExitCode.FENCED, f"the first copy ended with {code}, not {int(ExitCode.FENCED)}")
    bench.wait_state(second, "RUNNING")
    bench.wait_drained()
    tally.compare(bench, "a second copy took over", {0: "other"})
    tally.killed(bench.kill(second), "the second copy")


def two_operators(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """Two launch the same instance at once: on one disk the lock settles it, on two the fence. One runs.

    One that ends with 10 is launched again, as Airflow does. The one that stays may be among them: the group may take up a
    request to join of the other one after that has ended, and fence the one that stays with it.
    """
    for disks in (("state", "state"), ("state", "other")):
        both = [bench.launch(disk=disk, log=f"operator-{i}.log") for i, disk in enumerate(disks)]

        def launch_again(both: list = both, disks: Sequence[str] = disks) -> None:
            for i, process in enumerate(both):
                if process.poll() == ExitCode.RETRY:
                    bench.wait_ended(process)
                    both[i] = bench.launch(disk=disks[i], log=f"operator-{i}.log")

        def one_left(both: list = both, launch_again: Callable[[], None] = launch_again) -> bool:
            launch_again()
            alive = [process for process in both if process.poll() is None]
            said = read_run_file(run_file_path(bench.var_dir, bench.application_id, 0)) or {}
            return len(alive) == 1 and said.get("state") == "RUNNING" and said.get("pid") == alive[0].pid

        def one_left_and_drained(one_left: Callable[[], bool] = one_left) -> bool:
            return one_left() and bench.is_drained()

        tally.expect(wait_until(one_left, 300), f"two operators on {disks}: not exactly one runs")
        bench.feeder.feed(bench.batch_records)
        tally.expect(
            wait_until(one_left_and_drained, 300, every_s=0.2), f"two operators on {disks}: not all is committed"
        )
        alive = [i for i, process in enumerate(both) if process.poll() is None]
        codes = {bench.wait_ended(both[i]) for i in {0, 1}.difference(alive)}
        tally.expect(codes <= {ExitCode.REFUSED, ExitCode.FENCED}, f"two operators on {disks}: exit codes {codes}")
        tally.compare(bench, f"two operators on {disks}", {0: disks[alive[0]]} if alive else None)
        for i in alive:
            bench.stop(both[i])


def two_instances(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """Half the partitions each, on two machines; one dies in a rebalance, then one for good: the other restores."""
    first = bench.launch(0, "machine-0")
    bench.wait_state(first, "RUNNING")
    bench.arm("rebalance")
    second = bench.launch(1, "machine-1")
    tally.killed(_first_to_end(bench, [first, second]), "in the rebalance")
    if first.poll() is not None:
        first = bench.launch(0, "machine-0")
    if second.poll() is not None:
        second = bench.launch(1, "machine-1")
    bench.feeder.feed(bench.batch_records)

    def halves() -> bool:
        return [len(held_partitions(bench, i)) for i in (0, 1)] == [bench.tasks // 2] * 2

    tally.expect(wait_until(halves, 300), "two instances do not share the partitions by halves")
    bench.wait_drained()
    tally.compare(bench, "killed in a rebalance", {0: "machine-0", 1: "machine-1"})
    tally.killed(bench.kill(second), "one of two")
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    tally.expect(
        wait_until(lambda: len(held_partitions(bench, 0)) == bench.tasks, 60),
        "the survivor did not take all partitions",
    )
    tally.compare(bench, "one of two killed for good", {0: "machine-0"})
    tally.killed(bench.kill(first), "the survivor")


def three_instances(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """Three share the tasks: what a task joins lies in the same partitions of all its topics; one is killed."""
    disks = {number: f"machine-{number}" for number in range(3)}
    running = {number: bench.launch(number, disk) for number, disk in disks.items()}

    def shared(alive: set[int]) -> bool:
        held = [len(held_partitions(bench, number)) for number in alive]
        return sum(held) == bench.tasks and min(held) > 0

    tally.expect(wait_until(lambda: shared(set(disks)), 180), "three instances do not share the tasks")
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    tally.compare(bench, "three instances", disks)
    tally.killed(bench.kill(running.pop(2)), "one of three")
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    tally.expect(wait_until(lambda: shared({0, 1}), 120), "the two that are left did not take all tasks")
    tally.compare(bench, "one of three killed", {number: disks[number] for number in running})
    for process in running.values():
        bench.stop(process)


def stopped_and_woken(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """SIGSTOP before step 5 and between 5 and 6; the tasks move; the sleeper wakes and can do no harm.

    The instance that has taken the tasks over is the next to be stopped. Its successor finds on its disk the stores that the
    first sleeper has left there.
    """
    sleeper = bench.launch(0, "machine-0")
    bench.wait_state(sleeper, "RUNNING")
    for number, point in enumerate(("4-commit-records", "5-offsets")):
        other = 1 - number
        holders = {other: f"machine-{other}"}
        bench.arm(point, skip=1, how="SIGSTOP")
        bench.feeder.feed(bench.batch_records)
        tally.expect(wait_until(lambda: not bench.arm_file.exists(), 300), f"{point} was not reached")
        successor = bench.launch(other, f"machine-{other}")
        bench.wait_state(successor, "RUNNING", other)
        moved = wait_until(lambda other=other: len(held_partitions(bench, other)) == bench.tasks, 90)
        tally.expect(moved, f"{point}: the tasks did not move")
        bench.wait_drained()
        tally.compare(bench, f"stopped at {point}, asleep", holders)
        sleeper.send_signal(signal.SIGCONT)
        code = bench.wait_ended(sleeper)
        tally.expect(code in (ExitCode.RETRY, ExitCode.FENCED), f"{point}: the woken sleeper ended with {code}")
        bench.feeder.feed(bench.batch_records)
        bench.wait_drained()
        tally.compare(bench, f"stopped at {point}, woken", holders)
        sleeper = successor
    bench.stop(sleeper)


def stopped_alone(bench: Bench, tally: Tally, _chance: random.Random, _n: int) -> None:
    """SIGSTOP of the only instance, until its transaction has timed out: it is nobody's second copy."""
    sleeper = bench.launch()
    bench.wait_state(sleeper, "RUNNING")
    bench.arm("4-commit-records", skip=1, how="SIGSTOP")
    bench.feeder.feed(bench.batch_records)
    tally.expect(wait_until(lambda: not bench.arm_file.exists(), 300), "4-commit-records was not reached")
    places = partitions(bench.bootstrap, [commits_topic(bench.application_id)])

    def timed_out() -> bool:
        levels = ("read_committed", "read_uncommitted")
        stable, written = (end_offsets(bench.bootstrap, places, level) for level in levels)
        return stable == written and not members(
            Settings.load(bootstrap_servers=bench.bootstrap), bench.admin, bench.application_id
        )

    tally.expect(wait_until(timed_out, 300), "the transaction did not time out")
    sleeper.send_signal(signal.SIGCONT)
    # It goes on where the client could abort the batch, and else asks for a relaunch.
    continues_from = wait_until(lambda: sleeper.poll() is not None or bench.is_drained(), 300)
    tally.expect(continues_from, "a lone instance that was stopped neither goes on nor ends")
    code = bench.wait_ended(sleeper) if sleeper.poll() is not None else bench.stop(sleeper)
    tally.expect(code in (ExitCode.OK, ExitCode.RETRY), f"a lone instance that was stopped ended with {code}")
    running = recovered(bench, tally, "stopped alone, launched again")
    tally.killed(bench.kill(running), "after it was stopped alone")


def held_partitions(bench: Bench, instance: int) -> list[str]:
    """The lead partitions of an instance's tasks; none unless it is RUNNING."""
    said = read_run_file(run_file_path(bench.var_dir, bench.application_id, instance)) or {}
    return list(said.get("partitions", [])) if said.get("state") == "RUNNING" else []


def _first_to_end(bench: Bench, processes: list) -> int | None:
    wait_until(lambda: any(process.poll() is not None for process in processes), 300)
    for process in processes:
        if process.poll() is not None:
            return bench.wait_ended(process)
    return None


Scenario = Callable[[Bench, Tally, random.Random, int], None]
SCENARIOS: dict[str, Scenario] = {
    "steps": kill_at_steps,
    "restore": kill_in_restore,
    "random": kill_at_random,
    "second-copy": second_copy,
    "two-operators": two_operators,
    "two-instances": two_instances,
    "three-instances": three_instances,
    "stopped": stopped_and_woken,
    "stopped-alone": stopped_alone,
}

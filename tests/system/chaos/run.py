"""`make chaos`: a stream under load while all that it stands on fails, compared with a recomputation from its input.

    python -m tests.system.chaos.run [--minutes M] [--seed N] [--only KIND …] [--guarantee G] [--rate N] [--commit-interval MS]
    [--calm S] [--report FILE]

Faults are drawn in turn, each kind as often as the others, some while others last. Behind each: the seconds until all that was
there when it, and what came with it, had healed is committed. Exit 1 where anything is off. Last line:

    chaos: faults=… kinds=… records=… lost=0 duplicated=0 wrong=0 stuck=0

With `--guarantee at_least_once` each kind comes once, by itself, while a commit is held between its outputs and its offsets.
Exit 1 where something was lost or wrong, or no output came again behind a kind that ends such a commit. Last line:

    chaos at_least_once: classes=… with_duplicates=… lost=0 wrong=0 stuck=0
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from rich.console import Console
from tests.support.log_ends import ends_of_logs
from tests.support.truth.topics import each_row, hidden_ends
from tests.system.chaos import airflow_faults, faults, topic_faults
from tests.system.chaos.airflow_stream import AirflowStream, check_small
from tests.system.chaos.brokers import Brokers, disks_of_their_own
from tests.system.chaos.checks import check
from tests.system.chaos.course import AT_LEAST_ONCE, Course, table, table_of_held, verdict, verdict_of_held
from tests.system.chaos.faults import DISK_OF_BROKER, Longest
from tests.system.chaos.feeding import PARTITIONS
from tests.system.chaos.findings import Findings
from tests.system.chaos.held import held_commit
from tests.system.chaos.kinds import KINDS, Needs, NothingToHarm, When
from tests.system.chaos.sampling import Sampler
from tests.system.chaos.topic_faults import topics_of
from tests.system.chaos.turns import Turns
from tests.system.chaos.world import World
from tests.system.crash import disk
from tests.system.crash.nodes import contents

from tidemark import processes
from tidemark.kafka.topics import user_topics
from tidemark.names import TaskId, commits_topic, dlq_topic
from tidemark.processes import wait_until

FAULTS = (airflow_faults, faults, topic_faults)
"""The modules that add kinds."""
_STUCK_S = 240
_BEGINS_S = 600
"""For the first batches of fresh drivers, which no fault has harmed yet; not a measure of anything."""
_TOGETHER = (1, 5, 6, 7, 8)
"""Each time, one of these numbers is drawn, and that many faults happen at once."""
_TRIES = 5
"""A kind that finds nothing to harm is tried again, that many times at most; one that never happened fails the run."""
_PAUSE_S = (0.5, 3)
_RATE_S = 10
_OUTPUTS = [(topic, number) for topic in ("chaos-stats", "chaos-dequeued") for number in range(PARTITIONS)]


def run_faults(
    world: World, course: Course, kinds: Sequence[str], options: argparse.Namespace, console: Console
) -> None:
    """Bring faults about until the time is over, each kind once at least; where commits are held, each once."""
    is_held = options.guarantee == AT_LEAST_ONCE
    chance, minutes = random.Random(options.seed), 0 if is_held else options.minutes
    turns = Turns(kinds, chance)
    began, done = time.monotonic(), set[str]()
    while len(done) < len(kinds) or time.monotonic() - began < minutes * 60:
        if time.monotonic() - began >= minutes * 60:
            # Not all over again for the few that have not come.
            turns = Turns([name for name in kinds if name not in done], chance)
        names = turns.together(1 if options.calm or is_held else chance.choice(_TOGETHER))
        course.rounds.append((names[0], world.ends(_OUTPUTS)))
        recovery_s, missed = _bring_about(world, names, chance, is_held)
        course.missed.update(missed.keys())
        course.happened.update(name for name in names if name not in missed)
        done.update(name for name in names if name not in missed or course.missed[name] >= _TRIES)
        what = " + ".join(names)
        for name, why in missed.items():
            console.print(f"  {name}: did not happen, because {why}", markup=False)
        if recovery_s is None:
            course.stuck.append(what)
            console.print(f"  stuck: {what}: {world.progress_report()}", markup=False)
        for name in names if recovery_s is not None else ():
            if name not in missed:
                course.recoveries[name].append(recovery_s)
        minutes_left = minutes - (time.monotonic() - began) / 60
        summary = "stuck" if recovery_s is None else f"{recovery_s:.1f} s"
        console.print(
            f"[{course.faults}] {what}: {summary}; {world.feeding.sent:,} records sent, {max(0, minutes_left):.0f} min left",
            markup=False,
        )
        threading.Event().wait(chance.uniform(*_PAUSE_S))
        if options.calm and names[0] not in missed:
            threading.Event().wait(options.calm)
            later_s = _behind_s(world)
            course.later[names[0]].append(later_s)
            console.print(f"  {later_s:.1f} s behind the input after {options.calm} s of calm", markup=False)


def _behind_s(world: World) -> float:
    """The lag in seconds of input, at the rate at which the input comes now."""
    sent, began = world.feeding.sent, time.monotonic()
    threading.Event().wait(_RATE_S)
    a_second = (world.feeding.sent - sent) / (time.monotonic() - began)
    return world.lag() / a_second


def _bring_about(
    world: World, names: Sequence[str], chance: random.Random, is_held: bool
) -> tuple[float | None, dict[str, str]]:
    """The seconds until all that was there when the faults had healed was committed; None after `_STUCK_S`.

    Also why each of the kinds that found nothing to harm did not happen, by name.
    """
    failures: list[BaseException] = []
    missed: dict[str, str] = {}

    def bring(name: str, own: random.Random) -> None:
        try:
            KINDS[name].fault(world, own)
        except NothingToHarm as error:
            missed[name] = str(error)
        except BaseException as error:
            failures.append(error)
            raise

    draws = Longest if is_held else random.Random
    threads = [threading.Thread(target=bring, args=(name, draws(chance.random()))) for name in names]
    with held_commit(world) if is_held else nullcontext():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    world.brokers.cluster.start()
    if failures:
        raise RuntimeError(f"{' + '.join(names)} could not be brought about") from failures[0]
    healed = time.monotonic()
    has_recovered = wait_until(world.committed_from_now(), _STUCK_S, 0.5)
    return time.monotonic() - healed if has_recovered else None, missed


def drain(world: World, timeout_s: float) -> bool:
    """Until nothing is left to read, between the sub-topologies neither."""
    return wait_until(lambda: world.committed_from_now()(), timeout_s, 1.0)


def compare_states(world: World, found: Findings) -> None:
    """Each task's stores are the fold of their changelogs, and the standby's copies are the same."""
    topics = topics_of(world)
    for subtopology in world.plan.subtopologies:
        for store in (store for store in subtopology.stores if store.has_changelog):
            for number in range(PARTITIONS):
                live: dict[bytes, bytes] = {}
                place = topics.changelog(store.name), number
                for row in each_row(world.bootstrap, [place], 900):
                    if row.value is None:
                        live.pop(row.key or b"", None)
                    else:
                        live[row.key or b""] = row.value
                _compare_state(world, found, TaskId(subtopology.index, number), store.name, live)


def _compare_state(world: World, found: Findings, task: TaskId, store: str, live: dict[bytes, bytes]) -> None:
    disks = world.folder / "disks"
    level = {}
    for folder in sorted(disks.glob(f"*/*/{world.application_id}/{task}/rocksdb/{store}")):
        level[str(folder.relative_to(disks).parts[:2])] = contents(folder)
    equal = [name for name, there in level.items() if there == live]
    if not any("standby" not in name for name in equal):
        found.add("wrong", 1, f"store {store} of {task}: no instance's is the fold of its changelog ({len(live)} keys)")
    if not any("standby" in name for name in equal):
        found.add("wrong", 1, f"store {store} of {task}: the standby's is not the fold of its changelog")


def check_ends(world: World, found: Findings) -> None:
    """No transaction may have been left open."""
    logged = [topics_of(world).changelog(s.name) for s in world.plan.stores if s.has_changelog]
    own = [dlq_topic(world.application_id), commits_topic(world.application_id)]
    for place, ends in hidden_ends(world.bootstrap, [*user_topics(world.plan), *logged, *own]).items():
        found.add("wrong", 1, f"{place}: read_committed end {ends[0]} is not the read_uncommitted end {ends[1]}")


def kinds_of(options: argparse.Namespace) -> list[str]:
    """Those that are asked for, or all, as far as they are for the guarantee."""
    other = When.FREE if options.guarantee == AT_LEAST_ONCE else When.HELD
    chosen = [name for name in KINDS if not options.only or name in options.only or KINDS[name].when is When.HELD]
    return [name for name in chosen if KINDS[name].when is not other]


def run(folder: Path, options: argparse.Namespace, console: Console) -> int:
    """All of it; the exit code."""
    course = Course()
    is_held = options.guarantee == AT_LEAST_ONCE
    kinds = kinds_of(options)
    fills = any(KINDS[name].needs is Needs.DISKS for name in kinds)
    nodes = (1, 2, 3) if is_held else (DISK_OF_BROKER,)
    with disks_of_their_own(folder, fills, nodes) as may_fill, Brokers(folder / "brokers") as brokers:
        kinds = [name for name in kinds if may_fill or KINDS[name].needs is not Needs.DISKS]
        if fills and not may_fill:
            console.print("chaos: this user may not mount, disks are not filled")
        with (
            World(folder, brokers, options.seed, options.guarantee, options.commit_interval) as world,
            ends_of_logs(console, folder, "*.log", 40),
            ExitStack() as watched,
        ):
            world.feeding.rates.numbers = options.rate
            world.feeding.start()
            wait_until(lambda: world.feeding.sent > options.rate, 60)
            if any(KINDS[name].needs is Needs.AIRFLOW for name in kinds):
                small = AirflowStream(folder / "airflow", brokers.direct, brokers.proxied)
                world.airflow = watched.enter_context(small)
            if not wait_until(world.committed_from_now(), _BEGINS_S, 0.5):
                raise RuntimeError(
                    f"nothing has failed, and yet input is not read after {_BEGINS_S} s: {world.progress_report()}"
                )
            with Sampler(world, folder / "samples.csv") as sampler:
                run_faults(world, course, kinds, options, console)
            console.print("no more faults; what is left is worked off, then all is compared")
            world.feeding.stop()
            if world.airflow is not None:
                world.airflow.stop_feeding()
            world.wait_running(240)
            found = Findings()
            if not drain(world, _STUCK_S):
                course.stuck.append("the end")
            world.end_all()
            if world.airflow is not None:
                check_small(world.bootstrap, found)
                watched.close()
                world.airflow = None
            # Before windows expire: then the stores no longer hold what the changelogs do.
            compare_states(world, found)
            world.resume()
            world.feeding.close_windows()
            if not drain(world, _STUCK_S):
                course.stuck.append("the closing of the windows")
            world.end_all()
            for name, ends in world.ends_by_role().items():
                console.print(f"{name} ended with (code: times) {dict(ends)}")
            if world.repairs:
                console.print(f"refusals that the operator answered with (command: times) {dict(world.repairs)}")
            for line in world.refusals():
                found.add("wrong", 1, line)
            check_ends(world, found)
            check(world.bootstrap, dlq_topic(world.application_id), found, is_held, world.past, world.excused)
            course.attribute(found.again)
            lines = table_of_held(course) if is_held else table(course)
            if options.report:
                sampler.plot(options.report.with_suffix(".png"))
                options.report.write_text("\n".join(lines) + "\n")
    problems = [*(f"stuck behind {name}" for name in course.stuck)]
    problems += [f"{name} found nothing to harm, {course.missed[name]} times" for name in course.never_happened]
    for line in [*lines, *problems, *found.report[:40]]:
        console.print(line, markup=False, soft_wrap=True)
    last, is_right = verdict_of_held(course, found, kinds) if is_held else verdict(course, found)
    print(last)
    return 0 if is_right else 1


def main() -> int:
    """Read the options, and run in a folder of its own."""
    disk.in_mounts_of_its_own("tests.system.chaos.run")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", choices=sorted(KINDS), help="some kinds instead of all")
    parser.add_argument("--guarantee", choices=("exactly_once", AT_LEAST_ONCE), default="exactly_once")
    parser.add_argument("--rate", type=int, default=6_000, help="records a second of the largest topic")
    parser.add_argument("--commit-interval", type=int, default=1_000, help="milliseconds between two commits at least")
    parser.add_argument(
        "--calm", type=float, default=0.0, help="seconds after each fault, which then come one by one, until it is told "
        "how far behind the input the application is",
    )  # fmt: skip
    parser.add_argument("--report", type=Path, help="where the table goes, and beside it the plot")
    parser.add_argument("--keep", type=Path, help="a folder that stays, with all logs, instead of a temporary one")
    options = parser.parse_args()
    if options.keep and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"--keep {options.keep} is not empty: what is there is of another cluster; name a new folder")
    console, mark = Console(highlight=False), f"chaos-{uuid.uuid4()}"
    console.print(f"chaos: seed={options.seed}")
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-chaos-") as name:
        os.environ[processes.MARK] = mark
        return run(options.keep or Path(name), options, console)


if __name__ == "__main__":
    sys.exit(main())

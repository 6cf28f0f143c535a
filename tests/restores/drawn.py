"""One restore drawn at random: bring an application to a state, lose it, bring it back, compare."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.crash.bench import ROOT, Bench
from tests.crash.scenarios import Tally, recovered

from tidemark.instance.run_file import read_run_file, run_file_path, standby_file_path
from tidemark.local.processes import wait_until

APPS = ("patients", "nodes")
PARTITIONS = (1, 2, 3, 5)
SOURCES = ("local", "changelog", "savepoint", "standby", "run", "run --from changelog", "run --from savepoint")
DEATHS = ("5-offsets", "6-commit", "7-one-store", "at random", "stopped")


@dataclass(frozen=True)
class Drawn:
    """`killed_again` names the point of the restore itself at which it is killed once."""

    app: str
    partitions: int
    source: str
    death: str
    killed_again: str | None

    def __str__(self) -> str:
        again = f", killed again at {self.killed_again}" if self.killed_again else ""
        return f"{self.app}, {self.partitions} partitions, died {self.death}, from {self.source}{again}"


def draw(chance: random.Random, like: Drawn | None = None) -> Drawn:
    """The next restore; of the same application as `like`."""
    source = chance.choice(SOURCES)
    points = {
        "local": [None, "restore-tail"],
        "changelog": [None, "restore-whole", "restore-before-rename"],
        "savepoint": [None, "restore-tail", "restore-before-rename"],
        "standby": [None, "restore-before-rename"],
    }.get(source, [None, "restore-built", "swap-between", "swap-one"])
    return Drawn(
        like.app if like else chance.choice(APPS),
        like.partitions if like else chance.choice(PARTITIONS),
        source,
        chance.choice(DEATHS),
        chance.choice(points),
    )


def one_restore(bench: Bench, drawn: Drawn, chance: random.Random) -> list[str]:
    """What was wrong afterwards, in lines; empty when the state and all outputs equal a recomputation."""
    tally = Tally()
    # Changelogs are loaded by processes, or by threads.
    bench.restore_process_offsets = chance.choice((1, 1_000_000))
    running = bench.launch()
    bench.wait_state(running, "RUNNING")
    bench.feeder.feed(bench.batch_records)
    bench.wait_drained()
    standby = _standby(bench) if drawn.source == "standby" else None
    try:
        if "savepoint" in drawn.source:
            _tidemark(bench, "savepoint", "take", bench.topology)
        _die(bench, running, drawn.death, chance)
        _lose(bench, drawn.source)
        # Input goes on arriving while nothing runs.
        bench.feeder.feed(chance.randrange(500, 2000))
        _kill_once_in_restore(bench, drawn, tally)
        if drawn.source.startswith("run"):
            _tidemark(bench, "restore", "run", bench.topology, *drawn.source.split()[1:], "--yes")
        running = recovered(bench, tally, str(drawn))
        _expect_source(bench, drawn, tally)
        bench.stop(running)
    finally:
        bench.end_all()
        if standby is not None:
            standby.terminate()
            standby.wait(30)
        shutil.rmtree(bench.state_dir() / "standby-0", ignore_errors=True)
        shutil.rmtree(bench.folder / "savepoints", ignore_errors=True)
    return tally.report or ([tally.line()] if not tally.exact else [])


def _die(bench: Bench, running: subprocess.Popen[bytes], death: str, chance: random.Random) -> None:
    if death == "stopped":
        bench.feeder.feed(1000)
        bench.stop(running)
    elif death == "at random":
        bench.feeder.feed(bench.batch_records)
        time.sleep(chance.uniform(0.0, 2.0))  # the random moment itself
        bench.kill(running)
    else:
        bench.arm(death)
        bench.feeder.feed(bench.batch_records)
        bench.wait_ended(running)


def _lose(bench: Bench, source: str) -> None:
    """What is lost for the source to be needed."""
    if source in ("changelog", "savepoint", "standby", "run --from savepoint"):
        shutil.rmtree(bench.state_dir() / "0", ignore_errors=True)


def _kill_once_in_restore(bench: Bench, drawn: Drawn, tally: Tally) -> None:
    if drawn.killed_again is None:
        return
    bench.arm(drawn.killed_again)
    if drawn.source.startswith("run"):
        code = _tidemark(bench, "restore", "run", bench.topology, *drawn.source.split()[1:], "--yes", expect=None)
        tally.expect(code == -signal.SIGKILL, f"the restore ended with {code} before {drawn.killed_again}")
        return
    process = bench.launch()

    def passed() -> bool:
        said = read_run_file(run_file_path(bench.var_dir, bench.application_id, 0)) or {}
        return process.poll() is not None or (said.get("pid") == process.pid and said.get("state") == "RUNNING")

    # With nothing to replay the point is not passed: then there was nothing to kill.
    wait_until(passed, 120)
    bench.arm_file.unlink(missing_ok=True)
    bench.kill(process)


def _standby(bench: Bench) -> subprocess.Popen[bytes]:
    with (bench.folder / "standby.log").open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemark.cli.main", "standby", bench.topology],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=bench.environment(), cwd=ROOT,
        )  # fmt: skip

    def follows() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the standby ended with {process.returncode}")
        said = read_run_file(standby_file_path(bench.var_dir, bench.application_id, 0)) or {}
        return said.get("pid") == process.pid and said.get("state") == "RUNNING"

    if not wait_until(follows, 60):
        raise RuntimeError("the standby is not level after 60 s")
    return process


def _tidemark(bench: Bench, *arguments: str, expect: int | None = 0) -> int:
    with (bench.folder / "commands.log").open("ab") as file:
        code = subprocess.run(
            [sys.executable, "-m", "tidemark.cli.main", *arguments],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=bench.environment(), cwd=ROOT, timeout=180,
            check=False,
        ).returncode  # fmt: skip
    if expect is not None and code != expect:
        raise RuntimeError(f"tidemark {' '.join(arguments)} ended with {code}")
    return code


def _expect_source(bench: Bench, drawn: Drawn, tally: Tally) -> None:
    """The restore must have come from where it was drawn from, or the comparison would prove another one."""
    wanted = {"savepoint": "SAVEPOINT", "standby": "STANDBY", "changelog": "CHANGELOG", "local": "LOCAL"}.get(
        drawn.source
    )
    if wanted is None or drawn.killed_again is not None:
        return
    plans = [line for line in (bench.folder / "instance-0.log").read_text().splitlines() if "start plan:" in line]
    last = plans[-bench.tasks :]
    tally.expect(any(f"SourceOfState.{wanted}" in line for line in last), f"nothing came from {drawn.source}")

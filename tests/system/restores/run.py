"""`make restores N=60`: restores and faults drawn at random, each compared with a recomputation.

    python -m tests.system.restores.run [--n N] [--seed N] [--only KIND …] [--keep FOLDER]

Drawn are the topology, the number of tasks and of instances, what is lost or damaged, where the application dies, and whether
the restore is killed in the middle too; each kind within the first 60. What a command or a start refuses is put right as
its message says. Last line `restores: n=… wrong=0 silent=0 refused=…`; exit 1 when any is wrong or silent.

- wrong: state or output differs from the recomputation, or something was refused that nothing drawn explains;
- silent: state was lost or damaged, and no exit code, message or check said so;
- refused: with a reason that was drawn, and right once what the message names was done, or knowingly left.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from spark_jobs.session import spark_session
from tests.support.jvms import BRIEF
from tests.system.crash import disk
from tests.system.crash.bench import Bench
from tests.system.crash.nodes import NodesBench
from tests.system.crash.run import FAST_ABORT
from tests.system.restores.drawn import KINDS, Drawn, Family, deal
from tests.system.restores.restoring import Outcome, Verdict, one_restore
from tests.system.restores.scene import Scene

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.settings import Settings

PER_APPLICATION = 5


def _bench(drawn: Drawn, bootstrap: str, folder: Path, seed: int) -> Bench:
    if drawn.app == "patients":
        return Bench(bootstrap, folder, seed, drawn.partitions)
    settings = Settings.load(spark_driver_memory="2g", spark_master="local[1]", spark_shuffle_partitions=1)
    return NodesBench(bootstrap, folder, seed, spark_session(settings, "replay"), drawn.partitions)


class Stage:
    """The scene that is on; another application comes when one is spent, or another is drawn."""

    def __init__(self, bootstrap: str, folder: Path, chance: random.Random) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._chance = chance
        self._number = 0
        self._disk = ExitStack()
        self.scene: Scene | None = None

    def scene_for(self, drawn: Drawn) -> Scene:
        """The one that is on, if it will do."""
        if self.scene is None or drawn.begins or self.scene.is_spent:
            self.clear()
            folder = self._folder / f"{self._number}-{drawn.app}"
            self._number += 1
            bench = _bench(drawn, self._bootstrap, folder, self._chance.randrange(1 << 30))
            if disk.may_mount():
                self._disk.enter_context(disk.mounted(bench.state_dir()))
            settings = Settings.load(
                bootstrap_servers=self._bootstrap, var_dir=bench.var_dir, state_dir=bench.state_dir()
            )
            self.scene = Scene(bench, settings)
        return self.scene

    def clear(self) -> None:
        """Nothing runs, and nothing is left of the application."""
        scene, self.scene = self.scene, None
        try:
            if scene is not None:
                scene.close()
        finally:
            self._disk.close()
            if scene is not None:
                shutil.rmtree(scene.bench.folder, ignore_errors=True)


def _drawn_on(stage: Stage, drawn: Drawn, chance: random.Random) -> Outcome:
    try:
        return one_restore(stage.scene_for(drawn), drawn, chance)
    except Exception:
        return Outcome(Verdict.WRONG, faults=traceback.format_exc().splitlines())


def _show_logs(console: Console, folder: Path, before: dict[Path, int], lines: int = 15, width: int = 300) -> None:
    for log in sorted(folder.glob("*.log")):
        with log.open(errors="replace") as file:
            file.seek(before.get(log, 0))
            summary = [line[:width] for line in file.read().splitlines()[-lines:]]
        console.print(f"--- {log.name}")
        console.print("\n".join(summary), markup=False, soft_wrap=True)


def summary(outcomes: list[Outcome]) -> str:
    """The last line."""
    of = Counter(outcome.verdict for outcome in outcomes)
    refused = [outcome for outcome in outcomes if outcome.verdict is Verdict.REFUSED]
    reasons = Counter(" and ".join(outcome.reasons) for outcome in refused)
    grouped = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
    return (
        f"restores: n={len(outcomes)} wrong={of[Verdict.WRONG]} silent={of[Verdict.SILENT]} refused={len(refused)}"
        + (f" ({grouped})" if grouped else "")
    )


def main() -> int:
    disk.in_mounts_of_its_own("tests.system.restores.run")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", help="kinds whose names begin so")
    parser.add_argument("--keep", type=Path, help="where the logs of draws that are wrong go")
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"restores: seed={options.seed}")
    chance = random.Random(options.seed)
    kinds = tuple(k for k in KINDS if not options.only or any(k.name.startswith(name) for name in options.only))
    if not disk.may_mount():
        kinds = tuple(k for k in kinds if k.family is not Family.DISK)
        console.print("no disk is full in any of these: mounting one takes root")
    if not kinds:
        parser.error(f"--only {' '.join(options.only or ())}: there is no such kind, or it takes root")
    outcomes: list[Outcome] = []
    mark = f"restores-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-restores-") as name:
        os.environ.update({processes.MARK: mark, **BRIEF})
        with EmbeddedBroker(
            Path(name) / "broker", jars.ensure("kafka", Settings.load()), overrides=FAST_ABORT
        ) as broker:
            stage = Stage(broker.bootstrap, Path(name), chance)
            try:
                for drawn in deal(chance, options.n, PER_APPLICATION, kinds):
                    started = time.monotonic()
                    folder = stage.scene.bench.folder if stage.scene and not drawn.begins else None
                    before = {log: log.stat().st_size for log in folder.glob("*.log")} if folder else {}
                    outcome = _drawn_on(stage, drawn, chance)
                    outcomes.append(outcome)
                    said = f" ({', '.join(outcome.reasons)})" if outcome.reasons else ""
                    by = f"; {', then '.join(outcome.remedies)}" if outcome.remedies else ""
                    console.print(
                        f"[{len(outcomes)}/{options.n}] {drawn}: {outcome.verdict}{said}{by}, "
                        f"{time.monotonic() - started:.0f} s",
                        markup=False, soft_wrap=True,
                    )  # fmt: skip
                    if outcome.faults and stage.scene is not None:
                        for fault in outcome.faults[:20]:
                            console.print(f"    {fault}", markup=False, soft_wrap=True)
                        _show_logs(console, stage.scene.bench.folder, before)
                        if options.keep:
                            kept = options.keep / str(len(outcomes))
                            shutil.copytree(
                                stage.scene.bench.folder, kept, ignore=lambda *_: ["state", "savepoints"],
                                dirs_exist_ok=True,
                            )  # fmt: skip
                        stage.scene.is_spent = True
            finally:
                stage.clear()
    print(summary(outcomes))
    return 0 if all(outcome.verdict in (Verdict.EQUAL, Verdict.REFUSED) for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Memory, threads, file handles and temporary files of the application, once every few seconds."""

from __future__ import annotations

import csv
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from tests.system.chaos.world import World

from tidemark.temporary_folder import TEMPORARY_FOLDER

_EVERY_S = 5.0
_ANOTHER_S = 120.0
_KINDS = ("driver", "jvm", "standby")
_MEASURES = ("memory_mb", "threads", "handles")


class Sampler:
    """Writes a CSV while its block runs."""

    def __init__(self, world: World, path: Path) -> None:
        self._world = world
        self._path = path
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(10)

    def _run(self) -> None:
        began = time.monotonic()
        with self._path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["seconds", "kind", "process", *_MEASURES, "temporary_files"])
            while not self._end.wait(_EVERY_S):
                left = self._temporary_files()
                for kind, process in self._processes():
                    with suppress(psutil.Error):
                        memory = process.memory_info().rss / 1e6
                        measured = (round(memory, 1), process.num_threads(), process.num_fds())
                        writer.writerow([round(time.monotonic() - began, 1), kind, process.pid, *measured, left])
                file.flush()

    def _temporary_files(self) -> int:
        """In the system's folder, and in those of the application's own."""
        own = self._world.folder.glob(f"disks/*/{TEMPORARY_FOLDER}/*/*/*")
        return sum(1 for _ in own) + sum(1 for _ in Path(tempfile.gettempdir()).iterdir())

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        found = []
        for one in self._world.lasting:
            process = one.process
            with suppress(psutil.Error):
                if process is not None:
                    kind = "standby" if one is self._world.standby else "driver"
                    found += [(kind, psutil.Process(process.pid)), *(("jvm", jvm) for jvm in one.jvms())]
        return found

    def plot(self, path: Path) -> None:
        """One picture per measure: each process a line, as long as it lived."""
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt

        lines: list[tuple[str, list[dict[str, float]]]] = []
        newest: dict[tuple[str, str], list[dict[str, float]]] = {}
        with self._path.open() as file:
            for row in csv.DictReader(file):
                numbers = {name: float(row[name]) for name in ("seconds", *_MEASURES, "temporary_files")}
                own = newest.get((row["kind"], row["process"]))
                # A number that comes again after a while is another process's.
                if own is None or numbers["seconds"] - own[-1]["seconds"] > _ANOTHER_S:
                    own = newest[row["kind"], row["process"]] = []
                    lines.append((row["kind"], own))
                own.append(numbers)
        measures = (*_MEASURES, "temporary_files")
        figure, axes = plt.subplots(
            len(measures), 1, figsize=(10, 3 * len(measures)), sharex=True, layout="constrained"
        )
        colours = dict(zip(_KINDS, ("#00708a", "#d98200", "#777777"), strict=True))
        for axis, measure in zip(axes, measures, strict=True):
            for kind, rows in lines:
                axis.plot([r["seconds"] / 60 for r in rows], [r[measure] for r in rows], color=colours[kind], lw=1)
            axis.set_ylabel(measure.replace("_", " "))
            axis.set_ylim(bottom=0)
        for kind, colour in colours.items():
            axes[0].plot([], [], color=colour, label=kind)
        axes[0].legend(loc="upper left")
        axes[-1].set_xlabel("minutes")
        figure.savefig(path, dpi=120)
        plt.close(figure)

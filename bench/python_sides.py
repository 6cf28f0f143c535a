"""The other sides that are written in Python: Quix Streams in an environment of its own, and Spark without Tidemark."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import plain_spark
from bench.case import QUIX, SPARK, Case
from bench.errors import BenchFailed
from bench.machine import ROOT
from bench.programs import COUNTING, PROCESSING, PROCESSING_BATCHES
from bench.sides import Command, has_written
from tidemark.kafka import jars, java
from tidemark.settings import Settings

_QUIX = ROOT / "bench" / "quix"
_QUIX_PYTHON = ROOT / ".tools" / "quix" / "bin" / "python"


@dataclass(frozen=True)
class QuixSide:
    """Quix Streams with exactly-once. One process uses one core."""

    name: str = QUIX

    def group(self, case: Case) -> str:
        """Return the group of its only program."""
        return "quix-peer"

    def command(self, case: Case, bootstrap: str, folder: Path, instance: int = 0) -> Command:
        """Return the command. Raises `BenchFailed` if Quix Streams is not installed."""
        if case.program not in (PROCESSING, PROCESSING_BATCHES):
            raise BenchFailed(f"there is no program of {case.name} for Quix Streams")
        if not _QUIX_PYTHON.exists():
            raise BenchFailed(f"Quix Streams is not installed, {_QUIX_PYTHON} is missing: run `make quix`")
        program, (source,) = [str(_QUIX_PYTHON), str(_QUIX / "pulse_totals.py")], case.program.sources
        options = [bootstrap, self.group(case), source, case.program.sink, str(folder / "state" / str(instance))]
        return Command([*program, *options, str(case.commit_interval_ms)], {})

    def is_running(
        self, case: Case, folder: Path, log: Path, process: subprocess.Popen[bytes], instance: int = 0
    ) -> bool:
        """Return whether it has said that it processes messages."""
        return has_written(log, "now processing incoming messages")


@dataclass(frozen=True)
class PlainSparkSide:
    """Spark's own streaming aggregation with state in RocksDB. It writes its results at least once."""

    settings: Settings
    heap: str = "2g"
    name: str = SPARK

    def group(self, case: Case) -> str:
        """Return the group to which its listener commits."""
        return plain_spark.GROUP

    def command(self, case: Case, bootstrap: str, folder: Path, instance: int = 0) -> Command:
        """Return the command, after writing its options."""
        if case.program is not COUNTING:
            raise BenchFailed(f"there is no program of {case.name} for Spark alone")
        if case.instances > 1:
            raise BenchFailed("Spark alone runs as one process: leave out --instances")
        libraries = [str(jar) for jar in jars.ensure("spark", self.settings)]
        options = folder / "plain-spark.json"
        plain_spark.Options(bootstrap, libraries, str(folder), self.heap, case.max_batch_records).write(options)
        return Command(
            [sys.executable, "-m", "bench.plain_spark", str(options)],
            {
                "PYTHONPATH": os.pathsep.join([str(ROOT / "include"), str(ROOT)]),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "JAVA_HOME": str(java.find().home),
            },
        )

    def is_running(
        self, case: Case, folder: Path, log: Path, process: subprocess.Popen[bytes], instance: int = 0
    ) -> bool:
        """Return whether its first batch is finished, or there was nothing to read."""
        return has_written(log, plain_spark.RUNNING)

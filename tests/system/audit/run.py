"""`make audit-faults`: every fault of the table is planted and must be caught; healthy runs with crashes must pass."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path

from spark_jobs.session import spark_session
from tests.support.audit.faults import FAULTS
from tests.support.audit.matrix import Found, Matrix, fast

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.settings import Settings


def main() -> int:
    """0 if every fault was caught by its expectation and no healthy run was reported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=int, default=20, help="runs with crashes")
    parser.add_argument("--only", default="", help="faults whose name contains one of these, with commas")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    chosen = [fault for fault in FAULTS if any(part in fault.name for part in options.only.split(","))]
    mark = f"audit-{uuid.uuid4()}"
    os.environ[processes.MARK] = mark
    with (
        processes.guarded(mark),
        tempfile.TemporaryDirectory(prefix="tidemark-audit-") as folder,
        EmbeddedBroker(Path(folder) / "broker", jars.ensure("kafka", Settings.load())) as broker,
    ):
        settings = Settings.load(
            bootstrap_servers=broker.bootstrap,
            var_dir=Path(folder) / "var",
            state_dir=Path(folder) / "state",
            spark_master="local[2]",
            spark_shuffle_partitions=1,
            audit_time_share=1.0,
        )
        spark = spark_session(settings, "audit-faults")
        matrix = Matrix(settings, spark)
        faults, healthy = [], []
        with fast(spark):
            for number, fault in enumerate(chosen):
                faults.append(summary("fault", matrix.fault(fault, f"fault-{number}")))
            for number in range(options.healthy):
                healthy.append(summary("healthy", matrix.healthy(number, f"healthy-{number}")))
        spark.stop()
    caught = sum(found.as_wanted for found in faults)
    alarms = sum(not found.as_wanted for found in healthy)
    print(f"audit: faults={len(faults)} caught={caught} healthy={len(healthy)} false_alarms={alarms}")
    return 0 if caught == len(faults) and not alarms else 1


def summary(kind: str, found: Found) -> Found:
    """A line for each run."""
    mark = "ok" if found.as_wanted else "NOT"
    complaints = ", ".join(found.complaints) or "nothing to complain of"
    print(
        f"{time.strftime('%H:%M:%S')} {mark:<3} {kind}: {found.name}: {complaints} ({found.seconds:.1f} s)", flush=True
    )
    return found


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)

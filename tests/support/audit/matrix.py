"""Faults and healthy runs under one broker and one Spark session; `run.py` runs all of them, the tests some."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from spark_jobs.audit.run import Audit, AuditReport
from spark_jobs.session import configured
from tests.support.audit.application import PaymentsApp, payments
from tests.support.audit.faults import Fault
from tests.support.jvms import INTERPRETED

from tidemark.database import FactsDatabase
from tidemark.kafka.clients import librdkafka_config
from tidemark.settings import Settings
from tidemark.verdict import Verdict

POINTS = (
    "1-begin",
    "2-in-the-middle",
    "2-outputs",
    "3-in-the-middle",
    "3-changelogs",
    "4-commit-records",
    "5-offsets",
    "6-commit",
    "7-one-store",
    "7-stores",
)
_ROOT = Path(__file__).resolve().parents[3]
STALLED_MS = 10_000
"""Also how long a reader of the commit history waits for more of it, which a busy broker may need seconds for."""
_RUN_S = 120


@dataclass(frozen=True)
class Found:
    """What one run came to; `complaints` are the expectations that were not met."""

    name: str
    as_wanted: bool
    complaints: list[str]
    seconds: float


@dataclass
class Matrix:
    """Runs applications at `settings`' broker and audits them with `spark`."""

    settings: Settings
    spark: SparkSession

    def __post_init__(self) -> None:
        self.facts = FactsDatabase(self.settings)
        self.audit = Audit(self.spark, self.settings, self.facts, 1000)
        self.admin = AdminClient(librdkafka_config(self.settings))

    def fault(self, fault: Fault, name: str) -> Found:
        """Plant a fault, audit; as wanted if the expectation that should catch it did."""
        app = PaymentsApp(self.settings, self.admin, name, fault.topology)
        try:
            fault.plant(app)
            report = self._audited(name)
            if fault.then is not None:
                if complaints := complaints_of(report):
                    return Found(fault.name, False, complaints, report.seconds)
                fault.then(app)
                report = self._audited(name)
        finally:
            for producer in app.open_transactions:
                producer.abort_transaction(60)
        complaints = complaints_of(report)
        return Found(fault.name, fault.is_caught(name, complaints), complaints, report.seconds)

    def healthy(self, number: int, name: str) -> Found:
        """Kill instances at one or two points of a commit, let the next go on, audit twice with more input in between."""
        app = PaymentsApp(self.settings, self.admin, name)
        points = [POINTS[number % len(POINTS)]]
        if number % 2:
            points.append(POINTS[(number * 7 + 3) % len(POINTS)])
        seconds, complaints, killed = 0.0, [], 0
        for part, point in enumerate([*points, None]):
            app.feed(400)
            killed += self._run(app, point, skip=number % 3)
            if part == 0:
                self._run(app, None)
                if number % 2:
                    app.savepoint()
                report = self._audited(name)
                complaints += complaints_of(report)
                seconds += report.seconds
        report = self._audited(name)
        complaints += complaints_of(report)
        looked_at = {f.subject for f in report.findings if f.verdict is Verdict.OK}
        if killed < len(points) or "the_last_value_is_the_truth" not in looked_at or report.verdict is not Verdict.OK:
            complaints.append(f"killed {killed} of {len(points)}; {report.verdict}; looked at {sorted(looked_at)}")
        return Found(f"killed at {' and '.join(points)}", not complaints, complaints, seconds + report.seconds)

    def _audited(self, name: str) -> AuditReport:
        # Of at_least_once too: what is claimed is exactly_once.
        report = self.audit.run(payments(name).plan(), stalled_ms=STALLED_MS)
        # Great Expectations' objects refer to each other and to Spark's, whose memory Python does not see.
        gc.collect()
        return report

    def _run(self, app: PaymentsApp, point: str | None, skip: int = 0) -> bool:
        """One instance in a process of its own; whether it was killed at the point. Without one it must end by itself."""
        arm = self.settings.var_dir / f"{app.name}.arm"
        arm.parent.mkdir(parents=True, exist_ok=True)
        if point is not None:
            arm.write_text(json.dumps({"point": point, "skip": skip, "signal": "SIGKILL"}))
        environment = {
            **os.environ,
            **self.settings.as_environment(),
            "TIDEMARK_PROBE": "tests.system.crash.probe:kill",
            "TEST_CRASH_ARM": str(arm),
        }
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT / "include"), str(_ROOT)])
        command = [sys.executable, "-m", "tests.support.audit.process", app.name]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_RUN_S, check=False)
        if ended.returncode == -signal.SIGKILL:
            return True
        if ended.returncode or point is not None:
            raise RuntimeError(f"{app.name} ended with {ended.returncode}, {point} not reached: {ended.stderr[-2000:]}")
        return False


def complaints_of(report: AuditReport) -> list[str]:
    """Expectations that were not met, and checks that broke."""
    bad = (Verdict.WARNING, Verdict.FAILED)
    return [f.subject for f in report.findings if f.verdict in bad or f.evidence.get("broken")]


def fast(spark: SparkSession) -> AbstractContextManager[None]:
    """Let Spark interpret the queries of an audit."""
    return configured(spark, INTERPRETED)

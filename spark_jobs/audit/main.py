"""Runs one audit of one application: `audit.py --topology NAME --report FILE [--batches N] [--whole]`.

It prints its progress, one `AuditProgress` per line, and ends when its caller ends. It writes the report as JSON to FILE, and
unexpected rows and pages to `<var_dir>/audit/<app>/`. Its exit codes are those of `ExitCode`: 0 whatever the verdict is, 10
if the brokers did not answer, 1 for any other error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "include")]


from spark_jobs.audit.run import Audit, AuditReport
from spark_jobs.session import spark_session
from tidemark.atomic_file import keep_files_private
from tidemark.audit.job import job_name, stand_back
from tidemark.audit.lineage import run_event
from tidemark.audit.page import AuditPage, write_page
from tidemark.audit.table import past_audits
from tidemark.database import FactsDatabase
from tidemark.errors import ExitCode, TidemarkError
from tidemark.parent_death import end_with_caller
from tidemark.settings import Settings
from tidemark.supervision.instance_log import error_lines
from tidemark.temporary_folder import temporary_folders, use_temporary_folder
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

_SHOWN_AUDITS = 50
# Below some millions of records, Java's optimising compiler takes more time than it saves, because each query is new code.
# Code that is not optimised needs more of the stack, so that a deep record of Avro needs more of it here than in the stream.
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss16m"


def main(arguments: list[str]) -> ExitCode:
    """Run the audit, write the report, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", required=True, help="module in include/topologies")
    parser.add_argument("--report", required=True, type=Path, help="file to write the report to, as JSON")
    parser.add_argument("--batches", type=int, default=None, help="how many batches of each task at most")
    parser.add_argument(
        "--whole", action="store_true", help="audit everything in the commits topic, not only new batches"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("py4j", "great_expectations", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    keep_files_private()
    end_with_caller()
    stand_back()
    try:
        report = _run(options.topology, options.batches, options.whole)
    except TidemarkError as error:
        print(error_lines(error), file=sys.stderr)
        return error.exit_code
    options.report.write_text(json.dumps(report))
    return ExitCode.OK


def session_settings() -> Settings:
    """Return the settings with those of the audit's own Spark session."""
    settings = Settings.load()
    conf = {"spark.driver.extraJavaOptions": _JAVA_OPTIONS, **settings.spark_extra_conf}
    # One core of this machine: the others belong to the stream, and a cluster cannot access the audit's work folder.
    return settings.model_copy(update={"spark_master": "local[1]", "spark_extra_conf": conf})


def _run(name: str, batches: int | None, whole: bool) -> dict[str, object]:
    settings = session_settings()
    # The import takes seconds, so it runs while Spark starts and reads.
    threading.Thread(target=importlib.import_module, args=("great_expectations",)).start()
    plan = load(name).plan()
    facts = FactsDatabase(settings)
    name = job_name(plan.application_id)
    use_temporary_folder(temporary_folders(settings.state_dir, name))
    spark = spark_session(settings, name)
    try:
        folder = settings.var_dir / "audit" / plan.application_id
        audit = Audit(
            spark, settings, facts, batches, folder / "data_docs", lambda summary: print(summary.line(), flush=True)
        )
        report = audit.run(plan, whole=whole)
        quarantine = _quarantine(report, folder / "quarantine")
        past = past_audits(facts, plan.application_id, _SHOWN_AUDITS)
        page = AuditPage(
            plan.application_id,
            report.audit_id,
            report.time_ms,
            report.ranges,
            report.records,
            report.seconds,
            report.findings,
            past,
        )
        return {
            "application_id": plan.application_id,
            "audit_id": report.audit_id,
            "time_ms": report.time_ms,
            "ranges": report.ranges,
            "records": report.records,
            "seconds": round(report.seconds, 1),
            "verdict": str(report.verdict),
            "findings": [asdict(finding) for finding in report.findings],
            "page": str(write_page(page, folder / "pages")),
            "data_docs": str(folder / "data_docs" / "index.html"),
            "quarantine": str(quarantine) if quarantine else None,
            "openlineage": str(_openlineage(plan, report, settings, folder / "openlineage")),
        }
    finally:
        spark.stop()
        facts.close()


def _quarantine(report: AuditReport, folder: Path) -> Path | None:
    """Write unexpected rows with their coordinates, one JSON object per line. Returns None if there are none."""
    rows = [{"expectation": name, **row} for name, found in report.quarantined.items() for row in found]
    if not rows:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.audit_id}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _openlineage(plan: TopologyPlan, report: AuditReport, settings: Settings, folder: Path) -> Path:
    """Write the audit as a run event of OpenLineage."""
    broker = settings.bootstrap_servers.split(",")[0]
    said = report.topics, report.findings, report.quarantined
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.audit_id}.json"
    path.write_text(json.dumps(run_event(plan, report.audit_id, report.time_ms, broker, *said)))
    return path


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Starts an audit: a Spark job in its own process."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from tidemark.audit.progress import AuditProgress, Tell
from tidemark.audit.suites import NOTHING_NEW
from tidemark.checks.never_ran import never_ran
from tidemark.kafka.clients import librdkafka_config
from tidemark.settings import Settings
from tidemark.spark_submit import job_lines
from tidemark.temporary_folder import temporary_folders
from tidemark.topology_loader import load
from tidemark.verdict import Finding, Verdict

log = logging.getLogger(__name__)

_SCRIPT = Path("spark_jobs") / "audit" / "main.py"
_NICE = 5
_AUTOGROUP = Path("/proc/self/autogroup")
_NOTHING: Mapping[str, Any] = {"ranges": {}, "records": 0, "seconds": 0.0, "page": None, "quarantine": None}


@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit. `body` is the whole report, as JSON types."""

    findings: Sequence[Finding]
    body: Mapping[str, Any]


def job_name(application_id: str) -> str:
    """Return the name of the Spark application that audits an application."""
    return f"{application_id}-audit"


def log_progress(progress: AuditProgress) -> None:
    """Log the progress."""
    log.info("%s", progress)


def run_audit(
    topology: str,
    settings: Settings,
    *,
    batches: int | None = None,
    whole: bool = False,
    tell: Tell = log_progress,
) -> AuditResult:
    """Audit one application; `tell` is called with the progress. Blocks for a minute or more; the job ends with the caller.

    For one that has never run the only finding is that there is nothing to audit, and no job is started. Raises
    `OutcomeUnknown` with the job's message if it ends without a report.
    """
    plan = load(topology).plan()
    if unknown := never_ran(plan, settings, AdminClient(librdkafka_config(settings))):
        unknown = [replace(finding, evidence={NOTHING_NEW: True}) for finding in unknown]
        return AuditResult(unknown, {**_NOTHING, "findings": [asdict(finding) for finding in unknown]})
    with tempfile.TemporaryDirectory(prefix="tidemark-audit-") as folder:
        report = Path(folder) / "report.json"
        arguments = ["--topology", topology, "--report", str(report)]
        arguments += ["--batches", str(batches)] if batches else []
        arguments += ["--whole"] if whole else []
        what = f"the audit of {topology}"
        temporary = temporary_folders(settings.state_dir, job_name(plan.application_id))
        with closing(job_lines(_SCRIPT, arguments, settings, what, own_session=True, temporary=temporary)) as lines:
            for line in lines:
                if progress := AuditProgress.of_line(line):
                    tell(progress)
        body = json.loads(report.read_text())
    return AuditResult([_finding(found) for found in body["findings"]], body)


def stand_back() -> None:
    """Let this process and its children run after the stream when both need a core.

    If Linux groups processes by session (autogroup), niceness counts only within a session, and the session has a value of
    its own, which is set too if this process leads the session.
    """
    os.nice(_NICE)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            _AUTOGROUP.write_text(str(_NICE))


def _finding(body: Mapping[str, Any]) -> Finding:
    return Finding(body["subject"], Verdict(body["verdict"]), body["message"], body["evidence"])

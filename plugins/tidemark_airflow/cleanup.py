"""What `history_cleanup` does: the past of Tidemark, and that of Airflow in its own database, by `airflow db clean`."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk.configuration import conf

from tidemark.clock import wall_clock_ms
from tidemark.errors import TidemarkError
from tidemark.expiry import ExpiryPlan, plan_expiry, remove_expired
from tidemark.facts.database import FactsDatabase
from tidemark.local.airflow_parts import AIRFLOW_DATABASE
from tidemark.settings import Settings
from tidemark.topology.load import names

log = logging.getLogger(__name__)

# Not `trigger`, `task_state_store` and `dag`, which know no DAG or no age of what still runs.
_TABLES = ("dag_run", "task_instance", "task_instance_history", "xcom", "log", "import_error")
# Airflow adds it to `dag_run`, and cannot leave DAGs out of it, as it has no column for them. Its rows go with their runs.
_GO_WITH_RUNS = {"deadline"}
_NOT_CLEANED = re.compile(r"on the following tables and did not clean them: \[(.*?)\]")


class CleanupFailed(TidemarkError):
    """`airflow db clean` did not end well. Says what it said."""


def plan() -> list[str]:
    """Say what would be removed. Blocks. Raises `FactsUnavailable`, `CleanupFailed`."""
    settings = Settings.load()
    facts = FactsDatabase(settings)
    try:
        lines = list(_planned(settings, facts).lines())
    finally:
        facts.close()
    for line in lines or ["nothing of Tidemark is too old"]:
        log.info("%s", line)
    clean_airflow(settings, is_dry_run=True)
    return lines


def remove() -> None:
    """Remove it. Blocks. Raises as `plan` does."""
    settings = Settings.load()
    facts = FactsDatabase(settings)
    try:
        remove_expired(_planned(settings, facts), facts)
    finally:
        facts.close()
    clean_airflow(settings, is_dry_run=False)


def clean_airflow(settings: Settings, *, is_dry_run: bool) -> None:
    """Runs, tasks and logs of Airflow that are older than `logs_kept_days`, those of streams left out. Blocks.

    A stream has one run and one deferred task for as long as it lives, which may be older than anything else. Raises
    `CleanupFailed`.
    """
    database = os.environ.get(AIRFLOW_DATABASE)
    if not settings.logs_kept_days or not database:
        log.info(
            "Airflow's database is left alone: %s", "logs_kept_days is 0" if database else f"no {AIRFLOW_DATABASE}"
        )
        return
    before = datetime.now(UTC) - timedelta(days=settings.logs_kept_days)
    command = [
        str(Path(sys.executable).parent / "airflow"), "db", "clean", "--yes", "--skip-archive",
        "--error-on-cleanup-failure", "--clean-before-timestamp", before.isoformat(), "--tables", ",".join(_TABLES),
    ]  # fmt: skip
    if streams := [f"stream__{name}" for name in names()]:
        command += ["--exclude-dag-ids", ",".join(streams)]
    if is_dry_run:
        command.append("--dry-run")
    # What a task inherits names no database.
    environment = {**os.environ, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
    environment.pop("AIRFLOW__CORE__SQL_ALCHEMY_CONN", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        log.info("airflow db clean: %s", line)
    not_cleaned = _NOT_CLEANED.search(done.stderr)
    if not_cleaned and set(re.findall(r"\w+", not_cleaned[1])) <= _GO_WITH_RUNS:
        return
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise CleanupFailed(
            f"airflow db clean ended with {done.returncode}: {said[-1] if said else 'nothing was said'}"
        )


def _planned(settings: Settings, facts: FactsDatabase) -> ExpiryPlan:
    return plan_expiry(settings, facts, Path(conf.get("logging", "base_log_folder")), wall_clock_ms())

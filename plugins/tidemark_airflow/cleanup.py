"""The work of `history_cleanup`: removes old history of Tidemark, and that of Airflow with `airflow db clean`."""

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
from tidemark.database import FactsDatabase
from tidemark.devstack.airflow_parts import AIRFLOW_DATABASE
from tidemark.errors import TidemarkError
from tidemark.operations.history_expiry import ExpiryPlan, plan_expiry, remove_expired
from tidemark.settings import Settings
from tidemark.topology_loader import names

log = logging.getLogger(__name__)

# Not `trigger`, `task_state_store` and `dag`: they have no DAG id, or no age of what still runs.
_TABLES = ("dag_run", "task_instance", "task_instance_history", "xcom", "log", "import_error")
# Airflow adds this table to `dag_run` and cannot exclude DAGs from it, because it has no DAG id. Its rows are removed
# with their runs.
_GO_WITH_RUNS = {"deadline"}
_NOT_CLEANED = re.compile(r"on the following tables and did not clean them: \[(.*?)\]")


class CleanupFailed(TidemarkError):
    """`airflow db clean` failed. The message has the last line of its output."""


def plan() -> list[str]:
    """Log what would be removed and return Tidemark's part as lines. Blocks. Raises `FactsUnavailable`, `CleanupFailed`."""
    settings = Settings.load()
    facts = FactsDatabase(settings)
    try:
        lines = list(_planned(settings, facts).lines())
    finally:
        facts.close()
    for line in lines or ["Tidemark has nothing that is old enough to remove"]:
        log.info("%s", line)
    clean_airflow(settings, is_dry_run=True)
    return lines


def remove() -> None:
    """Remove what `plan` lists. Blocks. Raises the same errors."""
    settings = Settings.load()
    facts = FactsDatabase(settings)
    try:
        remove_expired(_planned(settings, facts), facts)
    finally:
        facts.close()
    clean_airflow(settings, is_dry_run=False)


def clean_airflow(settings: Settings, *, is_dry_run: bool) -> None:
    """Remove Airflow's runs, tasks and logs that are older than `logs_kept_days`, except those of streams. Blocks.

    A stream has one run and one deferred task for as long as it lives, which may be older than everything else. A dry run
    only lists what would be removed. Raises `CleanupFailed`.
    """
    database = os.environ.get(AIRFLOW_DATABASE)
    if not settings.logs_kept_days or not database:
        log.info(
            "Airflow's database is not cleaned: %s",
            "logs_kept_days is 0" if database else f"missing variable {AIRFLOW_DATABASE}",
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
    # The environment of a task does not contain the address of Airflow's database.
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
            f"airflow db clean ended with {done.returncode}: {said[-1] if said else 'it printed nothing'}"
        )


def _planned(settings: Settings, facts: FactsDatabase) -> ExpiryPlan:
    return plan_expiry(settings, facts, Path(conf.get("logging", "base_log_folder")), wall_clock_ms())

"""Deleting history after its retention time: rows of the database of facts, sizes of stores, pages, logs.

A plan lists what is older than the settings allow, and the removal takes that plan. State, savepoints, commit records, drills
and the reports of on-call cases are never removed here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, Table, func, select

from tidemark.audit.table import AUDITS
from tidemark.checks.store_growth import drop_before, histories, read
from tidemark.checks.verdict_table import VERDICTS
from tidemark.database import FactsDatabase
from tidemark.events.table import EVENTS
from tidemark.settings import Settings
from tidemark.stores.directory import STANDBY_PREFIX
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.liveness import Liveness, observe
from tidemark.supervision.run_file import INSTANCES_FOLDER, STANDBYS_FOLDER

log = logging.getLogger(__name__)

_DAY_MS = 86_400_000
_ROWS_AT_ONCE = 10_000
_LOGS = {
    INSTANCES_FOLDER: re.compile(r"(.+)-(\d+)\.log(\.start)?"),
    STANDBYS_FOLDER: re.compile(rf"(.+)-{STANDBY_PREFIX}(\d+)\.log(\.start)?"),
}
"""The folders of logs, and the names of those that are kept while their process lives. Earlier parts have another name."""
_PAGES = ("pages", "quarantine", "openlineage")


@dataclass(frozen=True)
class ExpiredRows:
    """Rows of a table that are older than `before_ms`."""

    table: str
    rows: int
    before_ms: int


@dataclass(frozen=True)
class ExpiredFiles:
    """Files of one kind that were not written to since `before_ms`."""

    kind: str
    paths: tuple[Path, ...]
    bytes: int
    before_ms: int


@dataclass(frozen=True)
class ExpiredSamples:
    """Samples of the sizes of an application's stores in the file `path` that are older than `before_ms`."""

    path: Path
    samples: int
    before_ms: int


@dataclass(frozen=True)
class ExpiryPlan:
    """The rows, the samples and the files that are older than the settings allow."""

    rows: tuple[ExpiredRows, ...]
    samples: tuple[ExpiredSamples, ...]
    files: tuple[ExpiredFiles, ...]

    def lines(self) -> Iterator[str]:
        """Yield the plan as text lines for the user."""
        for found in self.rows:
            yield f"{found.rows} rows of {found.table}"
        for old in self.samples:
            yield f"{old.samples} samples of the sizes of stores in {old.path}"
        for kind in self.files:
            yield f"{len(kind.paths)} {kind.kind}, {kind.bytes} bytes"
            yield from (f"    {path}" for path in kind.paths)


def plan_expiry(settings: Settings, facts: FactsDatabase, airflow_logs: Path, now_ms: int) -> ExpiryPlan:
    """Find what is too old. Changes nothing. Blocks. Raises `FactsUnavailable`."""
    return ExpiryPlan(
        tuple(_old_rows(settings, facts, now_ms)),
        tuple(_old_samples(settings, now_ms)),
        tuple(_old_files(settings, airflow_logs, now_ms)),
    )


def remove_expired(plan: ExpiryPlan, facts: FactsDatabase) -> None:
    """Remove what the plan names. Blocks. Raises `FactsUnavailable`. A file that cannot be removed is logged."""
    tables = {table.name: table for table in (EVENTS, VERDICTS, AUDITS)}
    for found in plan.rows:
        _delete(tables[found.table], found.before_ms, facts)
    if plan.rows:
        facts.release_disk()
    for old in plan.samples:
        try:
            drop_before(old.path, old.before_ms)
        except OSError as error:
            log.warning("failed to shorten %s, it is kept: %s", old.path, error)
    for kind in plan.files:
        for path in kind.paths:
            _remove(path, kind.before_ms)


def _old_rows(settings: Settings, facts: FactsDatabase, now_ms: int) -> Iterator[ExpiredRows]:
    if settings.facts_kept_days == 0:
        return
    before_ms = now_ms - settings.facts_kept_days * _DAY_MS
    for table in (EVENTS, VERDICTS, AUDITS):
        query = select(func.count()).select_from(table).where(*_too_old(table, before_ms))
        if count := int(facts.read(query)[0][0]):
            yield ExpiredRows(table.name, count, before_ms)


def _old_samples(settings: Settings, now_ms: int) -> Iterator[ExpiredSamples]:
    before_ms = now_ms - settings.facts_kept_days * _DAY_MS
    for path in histories(settings.var_dir) if settings.facts_kept_days else ():
        if count := sum(sample.time_ms < before_ms for sample in read(path)):
            yield ExpiredSamples(path, count, before_ms)


def _delete(table: Table, before_ms: int, facts: FactsDatabase) -> None:
    """Delete in parts, because SQLite has one writer at a time, and others wait for it only for seconds."""
    some = select(table.c.id).where(*_too_old(table, before_ms)).limit(_ROWS_AT_ONCE)
    while facts.delete(table.delete().where(table.c.id.in_(some))) == _ROWS_AT_ONCE:
        pass


def _too_old(table: Table, before_ms: int) -> list[ColumnElement[bool]]:
    is_old = [table.c.time_ms < before_ms]
    if table is AUDITS:
        # The next audit continues from the newest range of a task, however old that is.
        newest = select(func.max(AUDITS.c.id)).group_by(AUDITS.c.application_id, AUDITS.c.task)
        is_old.append(AUDITS.c.id.not_in(newest))
    return is_old


def _old_files(settings: Settings, airflow_logs: Path, now_ms: int) -> Iterator[ExpiredFiles]:
    audits = settings.var_dir / "audit"
    pages = [path for kind in _PAGES for path in audits.glob(f"*/{kind}/*")]
    own = [path for kind in _LOGS for path in (settings.var_dir / "log" / kind).glob("*.log*")]
    logs = [*own, *airflow_logs.rglob("*.log")]
    for kind, days, paths in (
        ("pages of audits", settings.pages_kept_days, pages),
        ("logs", settings.logs_kept_days, logs),
    ):
        before_ms = now_ms - days * _DAY_MS
        unwritten = _unwritten(paths, before_ms) if days else ()
        old = tuple(sorted(path for path in unwritten if not _is_in_use(path, settings.var_dir)))
        if old:
            yield ExpiredFiles(kind, old, sum(_size(path) for path in old), before_ms)


def _unwritten(paths: Iterable[Path], before_ms: int) -> Iterator[Path]:
    for path in paths:
        with suppress(FileNotFoundError):
            if not path.is_symlink() and path.is_file() and path.stat().st_mtime * 1000 < before_ms:
                yield path


def _is_in_use(path: Path, var_dir: Path) -> bool:
    """Return whether it is the log of a live instance or standby, which may write nothing while no input comes."""
    if path.parent.parent != var_dir / "log" or path.parent.name not in _LOGS:
        return False
    found = _LOGS[path.parent.name].fullmatch(path.name)
    if found is None:
        return False
    key = InstanceKey(found[1], int(found[2]), is_standby=path.parent.name == STANDBYS_FOLDER)
    return observe(InstanceFiles(var_dir, key)).liveness is not Liveness.GONE


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _remove(path: Path, before_ms: int) -> None:
    """Delete a file, unless it was written to since the plan, and its folders that become empty."""
    try:
        if not list(_unwritten([path], before_ms)):
            return
        path.unlink()
    except OSError as error:
        log.warning("failed to remove %s, it is kept: %s", path, error)
        return
    # Task logs are in `dag_id=…/run_id=…/task_id=…`. The folders of DAGs and of pages are kept.
    for folder in path.parents:
        if not folder.name.startswith(("run_id=", "task_id=", "map_index=")):
            return
        try:
            folder.rmdir()
        except OSError:
            return

"""The tasks of the DAGs that `change_dag` makes: each calls a step of `tidemark.operations.case.change_steps`.

Tasks import this module when they run, because it loads clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.clock import wall_clock_ms
from tidemark.operations.case.change_steps import Changing
from tidemark.restore.listener import LoggingRestoreListener
from tidemark_airflow.cases import Context, is_done, kept_plan, step, write_down


def preflight(context: Context) -> None:
    """Record what was requested and check whether it is possible."""
    if is_done(context):
        return
    write_down(context)
    with _changing(context, "preflight") as work:
        work.preflight()


def plan(context: Context) -> str:
    """Make the plan and return its Markdown text, which is shown to the approver."""
    if is_done(context):
        return kept_plan(context)
    with _changing(context, "plan") as work:
        return work.plan()


def change(context: Context) -> None:
    """Make the approved change. A retry finds what is done; after the work of the case is done, nothing is changed."""
    if is_done(context):
        return
    with _changing(context, "change") as work:
        work.change()


@contextmanager
def _changing(context: Context, name: str) -> Iterator[Changing]:
    with step(context, name) as at:
        opened = at.opened
        yield Changing(
            opened.topology,
            opened.settings,
            opened.folder,
            LoggingRestoreListener(),
            at.probe,
            at.report,
            wall_clock_ms,
        )

"""Tasks of the DAGs that `change_dag` makes: from a task's context to a step of `tidemark.oncall.changing`.

Imported by a task when it runs, as it loads clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.clock import wall_clock_ms
from tidemark.oncall.changing import Changing
from tidemark.restore.listener import LoggingRestoreListener
from tidemark_airflow.cases import Context, is_done, kept_plan, step, write_down


def preflight(context: Context) -> None:
    """Write down what is asked, and look whether it could be done."""
    if is_done(context):
        return
    write_down(context)
    with _changing(context, "preflight") as work:
        work.preflight()


def plan(context: Context) -> str:
    """Make the plan; the Markdown of it is what the approver is shown."""
    if is_done(context):
        return kept_plan(context)
    with _changing(context, "plan") as work:
        return work.plan()


def change(context: Context) -> None:
    """Do what was approved; tried again, it finds what is done. Cleared when the case is done, it does nothing."""
    if is_done(context):
        return
    with _changing(context, "change") as work:
        work.change()


@contextmanager
def _changing(context: Context, name: str) -> Iterator[Changing]:
    with step(context, name) as at:
        opened = at.opened
        yield Changing(
            opened.topology, opened.settings, opened.folder, LoggingRestoreListener(), at.probe, at.say, wall_clock_ms
        )

"""Copying of stores that a restore does not build, if they are up to date with the last commit.

Stores without a changelog cannot be rebuilt. Custom stores belong to the user's code; the instance rebuilds one only if
it must.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemark.errors import SavepointFailed, TaskCorrupted, UserCodeFailed
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.start_plan import unlogged_fault
from tidemark.restore.store_builder import StoreOpener
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, TopologyPlan


def carry_over(
    opener: StoreOpener,
    plan: TopologyPlan,
    facts: TaskFacts,
    committed: CommittedProgress,
    held: Sequence[Path],
    built: Path,
    report: Callable[[str], None],
) -> None:
    """Copy each such store of a task to `built`, from the first folder in `held` where it is up to date with the last commit.

    `held` and `built` are laid out as an instance's folder of the application; no process has a store open. If no
    folder has a store that is up to date, it begins empty, or, if it is logged, is rebuilt by the instance; `report` is
    called with a line about it. May be repeated.
    """
    task = facts.task
    subtopology = plan.subtopologies[task.subtopology]
    for spec in (
        spec for spec in subtopology.stores if spec.custom is not None or not (spec.is_logged or spec.in_memory)
    ):
        wanted = value_signature(spec, value_layouts(subtopology)[spec.name])
        target, fault = folder_of(built, task, spec.name), "no folder here holds it"
        for source in (folder_of(holder, task, spec.name) for holder in held):
            shutil.rmtree(target, ignore_errors=True)
            if not source.exists():
                continue
            try:
                found = unlogged_fault(_copied(opener, source, target, spec), wanted, committed, facts.record)
            except (TaskCorrupted, SavepointFailed) as error:
                found = str(error)
            if found is None:
                break
            fault = found
            shutil.rmtree(target, ignore_errors=True)
        else:
            kind, change_kind = (
                ("custom", "the instance that opens it rebuilds it from its changelog")
                if spec.is_logged
                else ("not logged", "it begins empty; its earlier contents cannot be restored")
            )
            report(f"store {task}/{spec.name} is {kind} and {fault}: {change_kind}")


def _copied(opener: StoreOpener, source: Path, target: Path, spec: StoreSpec) -> StoreCheckpoint | None:
    """Copy a store and return its checkpoint."""
    if spec.is_rocksdb:
        with opened(source) as store:
            store.create_checkpoint(target)
            return store.checkpoint
    shutil.copytree(source, target)
    try:
        copy = opener.open(target, spec)
    except UserCodeFailed as error:
        raise TaskCorrupted(f"its folder cannot be opened ({error.__cause__})") from error
    try:
        return copy.checkpoint
    finally:
        copy.close()

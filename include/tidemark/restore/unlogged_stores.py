"""Copying of stores that a restore does not build, if they are up to date with the last commit.

Stores without a changelog cannot be rebuilt. Custom stores belong to the user's code; the instance rebuilds one only if
it must.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidemark.errors import SavepointFailed, StoreFailed, TaskCorrupted, UserCodeFailed
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import TaskFacts
from tidemark.recovery.start_plan import unlogged_fault
from tidemark.restore.store_builder import StoreOpener
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.plan import StoreSpec, TopologyPlan


class GroupFault(NamedTuple):
    """The reason why stores that are used only together (`SubTopology.unlogged_groups`) cannot be used: `spec` has a fault."""

    spec: StoreSpec
    reason: str

    @classmethod
    def first(cls, group: Sequence[StoreSpec], fault_in: Callable[[StoreSpec], str | None]) -> GroupFault | None:
        """Return the first fault that `fault_in` finds; None if all stores of the group can be used."""
        faults = ((spec, fault_in(spec)) for spec in group)
        return next((cls(spec, reason) for spec, reason in faults if reason is not None), None)

    def of(self, spec: StoreSpec) -> str:
        """Return the reason for one store of the group."""
        return self.reason if spec is self.spec else f"it cannot be used without {self.spec.name}, and {self.reason}"


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

    `held` and `built` are laid out as an instance's folder of the application; no process has a store open. A store without
    a changelog and the store of its keys' order come from the same folder. If no folder has a store that is up to date, it
    begins empty, or, if it is logged, is rebuilt by the instance; `report` is called with a line about it. May be repeated.
    Raises `StoreFailed` or `OSError` if a store cannot be copied although it may be intact, as on a full disk.
    """
    task = facts.task
    subtopology = plan.subtopologies[task.subtopology]
    layouts = value_layouts(subtopology)

    def copy_fault(holder: Path, spec: StoreSpec) -> str | None:
        source = folder_of(holder, task, spec.name)
        try:
            checkpoint = _copied(opener, source, folder_of(built, task, spec.name), spec) if source.exists() else None
        except TaskCorrupted as error:
            return str(error)
        return unlogged_fault(checkpoint, value_signature(spec, layouts[spec.name]), committed, facts.record)

    def remove(group: Sequence[StoreSpec]) -> None:
        for spec in group:
            shutil.rmtree(folder_of(built, task, spec.name), ignore_errors=True)

    custom = [(spec,) for spec in subtopology.stores if spec.custom is not None and spec.is_logged]
    unlogged = [group for group in subtopology.unlogged_groups if not group[0].in_memory]
    for group in [*custom, *unlogged]:
        remove(group)
        fault: GroupFault | None = GroupFault(group[0], "no folder here holds it")
        for holder in (holder for holder in held if folder_of(holder, task, group[0].name).exists()):
            fault = GroupFault.first(group, partial(copy_fault, holder))
            if fault is None:
                break
            remove(group)
        if fault is None:
            continue
        for spec in group:
            kind, change_kind = (
                ("custom", "the instance that opens it rebuilds it from its changelog")
                if spec.is_logged
                else ("not logged", "it begins empty; its earlier contents cannot be restored")
            )
            report(f"store {task}/{spec.name} is {kind} and {fault.of(spec)}: {change_kind}")


def _copied(opener: StoreOpener, source: Path, target: Path, spec: StoreSpec) -> StoreCheckpoint | None:
    """Copy a store and return its checkpoint. Raises `TaskCorrupted` if it is damaged, and else as `carry_over`."""
    if spec.is_rocksdb:
        with opened(source) as store:
            try:
                store.create_checkpoint(target)
            except SavepointFailed as error:
                raise StoreFailed(str(error)) from error
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

"""Keys and bytes of every task's stores on this machine, and the last savepoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.clock import wall_clock_ms
from tidemark.errors import CopyUnusable, TidemarkError
from tidemark.names import TaskId
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.store_sizes import KnownSizes, copies_on_disk
from tidemark.stores.directory import STANDBY_PREFIX
from tidemark.topology.plan import TopologyPlan

_TRIED = 3


@dataclass(frozen=True)
class StoreView:
    """One copy of one task's store on this machine. `holder` is the folder that has it: an instance or a standby.

    `is_old` is as in `StoreCopy`.
    """

    task: TaskId
    store: str
    holder: str
    keys: KnownSizes
    bytes_disk: KnownSizes
    is_old: bool = False

    @property
    def is_standby(self) -> bool:
        """Whether the copy is a standby's."""
        return self.holder.startswith(STANDBY_PREFIX)

    @property
    def is_counted(self) -> bool:
        """Whether sums over all tasks contain the copy: it is an instance's, and not known to be old."""
        return not (self.is_standby or self.is_old)


@dataclass(frozen=True)
class SavepointView:
    """The newest complete savepoint; None in all fields if there is none. `fault`: the repository cannot be read."""

    savepoint_id: str | None = None
    taken_ms: int | None = None
    fault: str | None = None


def read_stores(plan: TopologyPlan, settings: Settings) -> list[StoreView]:
    """Measure every copy on this machine, sorted. Blocks: opens every store of RocksDB for a moment, to read only."""
    found: list[StoreView] = []
    for subtopology in plan.subtopologies:
        for spec in subtopology.stores:
            for task in _tasks_here(settings, plan.application_id, subtopology.index):
                for copy in copies_on_disk(settings.state_dir, plan.application_id, task, spec):
                    if copy.holder is not None:
                        found.append(StoreView(task, spec.name, copy.holder, copy.keys, copy.bytes_disk, copy.is_old))
    return sorted(found, key=lambda row: (row.task, row.store, row.holder))


def _tasks_here(settings: Settings, application_id: str, subtopology: int) -> list[TaskId]:
    folders = settings.state_dir.glob(f"*/{application_id}/{subtopology}_*")
    numbers = {folder.name.partition("_")[2] for folder in folders if folder.is_dir()}
    return [TaskId(subtopology, int(number)) for number in sorted(numbers) if number.isdigit()]


def read_savepoint(settings: Settings, application_id: str, clock: Callable[[], int] = wall_clock_ms) -> SavepointView:
    """Return the newest complete savepoint. Blocks: lists the repository, which may be remote. Does not raise."""
    try:
        repository = SavepointRepository(settings.savepoint_location, application_id)
        for savepoint_id in repository.newest_first(clock())[:_TRIED]:
            try:
                return SavepointView(savepoint_id, repository.manifest(savepoint_id).taken_ms)
            except CopyUnusable:
                continue
    except TidemarkError as error:
        return SavepointView(fault=str(error))
    return SavepointView()

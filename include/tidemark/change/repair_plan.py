"""A repair of changelogs before it runs: which store's, from which copy, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.start.evidence import SourceOfState

MOST_IN_PLACE = 50_000
"""Keys that are written into a changelog that stays, in the repair's transaction; where more differ, all go to a new one."""


@dataclass(frozen=True)
class TaskRepair:
    """One task's part of a store. `differing` counts keys whose last record in the changelog is another.

    It is None before anything was compared, and where the changelog is `damaged`, in the words of the fault.
    `is_judge`: whether the copy says what is right; where it is none, the changelog of this task stays as it is.
    `is_alone`: whether no second local copy is level, which would go on as it is.
    """

    task: str
    source: SourceOfState
    location: str
    is_judge: bool
    damaged: str | None = None
    differing: int | None = None
    is_alone: bool = True


@dataclass(frozen=True)
class StoreRepair:
    """One store of all tasks. `is_new`: whether all of it is written to a new changelog; None before anything was compared."""

    store: str
    changelog: str
    tasks: tuple[TaskRepair, ...]
    is_new: bool | None

    @property
    def differing(self) -> int:
        """Keys that differ, as far as could be compared."""
        return sum(task.differing or 0 for task in self.tasks)

    @property
    def damaged(self) -> str | None:
        """The first fault of the changelog."""
        return next((task.damaged for task in self.tasks if task.damaged), None)

    @property
    def told(self) -> str:
        """What becomes of its changelog, in words."""
        if self.is_new is None:
            return f"compared with all instances stopped: up to {MOST_IN_PLACE} keys are written into it, or all to a new one"
        if self.is_new:
            return "written to a new changelog"
        return f"{self.differing} keys written into it" if self.differing else "holds what the store holds"


@dataclass(frozen=True)
class RepairPlan:
    """The whole of it. `asked` is the source of state that a person chose, None for the best that there is."""

    application_id: str
    asked: SourceOfState | None
    stores: tuple[StoreRepair, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether every changelog was found to hold what its store holds."""
        return not any(store.is_new is None or store.is_new or store.differing for store in self.stores)

    @property
    def warnings(self) -> list[str]:
        """What a person should know before it is done."""
        told = [f"{s.changelog}: {s.damaged}; nothing can be compared with it" for s in self.stores if s.damaged]
        told += [
            f"task {task.task}: no copy of {store.store} here is level with the last commit; its part of {store.changelog} is "
            "taken as it is"
            for store in self.stores
            for task in store.tasks
            if not task.is_judge
        ]
        if any(store.is_new is not False for store in self.stores):
            told.append(
                "where a changelog is new, standbys begin again with it, and savepoints of before are of no use for it"
            )
        return told

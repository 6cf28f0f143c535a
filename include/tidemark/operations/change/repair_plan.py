"""The plan of a repair of changelogs: of which stores, from which copy, and how each changelog is written."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.recovery.source_of_state import SourceOfState

MOST_IN_PLACE = 50_000
"""The most keys that are written into an existing changelog, in the repair's transaction.

If more differ, a new one is written.
"""


@dataclass(frozen=True)
class TaskRepair:
    """One task's part of a store. `differing` counts the keys whose last record in the changelog is wrong.

    It is None before anything was compared, and if the changelog is `damaged`, which is the text of the fault.
    `is_judge` is true if the copy decides what is right; otherwise the changelog of this task stays as it is.
    `is_alone` is true if no second local copy is up to date, which an instance would use as it is.
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
    """The repair of one store of all tasks.

    `is_new` is true if all of it is written to a new changelog; None before anything was compared. `functions` are the
    import paths of the user's functions that compute the store again, if the source topics decide what is right.
    """

    store: str
    changelog: str
    tasks: tuple[TaskRepair, ...]
    is_new: bool | None
    functions: tuple[str, ...] = ()

    @property
    def differing(self) -> int:
        """The number of keys that differ, as far as they could be compared."""
        return sum(task.differing or 0 for task in self.tasks)

    @property
    def damaged(self) -> str | None:
        """The first fault of the changelog."""
        return next((task.damaged for task in self.tasks if task.damaged), None)

    @property
    def summary(self) -> str:
        """The change of its changelog, as text."""
        if self.is_new is None:
            return f"compared with all instances stopped: up to {MOST_IN_PLACE} keys are written into it, or all to a new one"
        if self.is_new:
            return "written to a new changelog"
        return f"{self.differing} keys written into it" if self.differing else "equal to the store"


@dataclass(frozen=True)
class RepairPlan:
    """The plan of a repair. `asked` is the source of state that the operator chose, None for the best one."""

    application_id: str
    asked: SourceOfState | None
    stores: tuple[StoreRepair, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether every changelog was found equal to its store."""
        return not any(store.is_new is None or store.is_new or store.differing for store in self.stores)

    @property
    def warnings(self) -> list[str]:
        """The notes that the operator should read before approving."""
        summary = [f"{s.changelog}: {s.damaged}; nothing can be compared with it" for s in self.stores if s.damaged]
        summary += [
            f"task {task.task}: no copy of {store.store} here is up to date with the last commit; its part of "
            f"{store.changelog} stays as it is"
            for store in self.stores
            for task in store.tasks
            if not task.is_judge
        ]
        summary += [
            f"{store.store}: computed again with the present code of {', '.join(store.functions)}; whether that code was "
            f"another one when the records were processed is not known: if it was, do not repair, as every key would get the "
            f"present code's value"
            for store in self.stores
            if store.functions
        ]
        if any(store.is_new is not False for store in self.stores):
            summary.append(
                "if a changelog is new, standbys read it from its beginning, and earlier savepoints cannot be used with it"
            )
        return summary

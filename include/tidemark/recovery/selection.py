"""The part of an application's state that is to be restored: some tasks, some stores, or all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tidemark.errors import StartRefused
from tidemark.names import TaskId
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class Selection:
    """Names of tasks and of stores, sorted; empty means all. If both are given, those stores of those tasks."""

    tasks: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()

    @classmethod
    def of(cls, tasks: Iterable[str] = (), stores: Iterable[str] = ()) -> Selection:
        """Create a selection from names in any order, which may be repeated."""
        return cls(tuple(sorted(set(tasks))), tuple(sorted(set(stores))))

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return not self.tasks and not self.stores

    def takes_task(self, task: TaskId) -> bool:
        """Whether the task, or some stores of it, are selected."""
        return not self.tasks or str(task) in self.tasks

    def takes_store(self, store: str) -> bool:
        """Whether the store is selected, in the tasks that are."""
        return not self.stores or store in self.stores

    @property
    def summary(self) -> str:
        """The selection as text."""
        tasks = f"task {', '.join(self.tasks)}" if self.tasks else "every task"
        if not self.stores:
            return tasks if self.tasks else "everything"
        return f"store {', '.join(self.stores)} of {tasks}"

    def require_known(self, plan: TopologyPlan, tasks: Mapping[TaskId, Collection[str]]) -> None:
        """Check that every name is one of `tasks`, which holds the stores that a restore builds by task, or of their stores.

        Raises `StartRefused`, which names the known ones, also if the selected tasks hold none of the selected stores.
        """
        names = [str(task) for task in sorted(tasks)]
        if unknown := sorted(set(self.tasks) - set(names)):
            raise StartRefused(
                f"{plan.application_id} has no task {', '.join(unknown)}; its tasks are {', '.join(names)}"
            )
        buildable = {store for stores in tasks.values() for store in stores}
        reasons = {spec.name: spec.uncopied for spec in plan.stores}
        for store in self.stores:
            if store not in buildable:
                reason = f"cannot restore store {store}: it is {reasons[store]}" if store in reasons else None
                raise StartRefused(
                    f"{reason or f'{plan.application_id} has no store {store}'}; the stores that a restore rebuilds are "
                    f"{', '.join(sorted(buildable)) or 'none'}"
                )
        found = (self.takes_task(task) and any(map(self.takes_store, stores)) for task, stores in tasks.items())
        if not self.is_all and not any(found):
            raise StartRefused(
                f"{plan.application_id} has nothing that a restore rebuilds under {self.summary}; what it rebuilds, by task: "
                f"{_by_task(tasks)}"
            )


EVERYTHING = Selection()


def _by_task(tasks: Mapping[TaskId, Collection[str]]) -> str:
    """Format the stores that a restore builds, by task."""
    return "; ".join(f"{task}: {', '.join(sorted(stores)) or 'none'}" for task, stores in sorted(tasks.items()))

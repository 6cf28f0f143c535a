"""The plan of a repair of changelogs: of which stores, from which copy, and how each changelog is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemark.kafka.messages import Message
from tidemark.recovery.source_of_state import SourceOfState

MOST_KEYS_IN_PLACE = 50_000
MOST_BYTES_IN_PLACE = 16 << 20
"""The most keys, and the most bytes of keys and values, that a repair writes into existing changelogs, of all stores together.

They are in one transaction, which must end before its time-out. What does not fit is written to a new changelog, in
transactions of its own.
"""


@dataclass
class DifferingKeys:
    """Collects what a task's part of a changelog lacks. `size_bytes` counts all of it.

    `values` is empty if there is more than a repair writes into a changelog.
    """

    values: list[Message] = field(default_factory=list)
    size_bytes: int = 0
    _keys: int = 0

    def add(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Add keys with the values that they should have; None for a key that should not be there."""
        for key, value in rows:
            self._keys += 1
            self.size_bytes += len(key) + len(value or b"")
            self.values.append({"key": key, "value": value})
            if not _fits(self._keys, self.size_bytes):
                self.values.clear()


@dataclass(frozen=True)
class TaskRepair:
    """One task's part of a store. `differing` counts the keys whose last record in the changelog is wrong.

    It is None before anything was compared, and if the changelog is `damaged`, which is the text of the fault.
    `differing_bytes` is the size of those keys and their right values.
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
    differing_bytes: int = 0


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
    def differing_bytes(self) -> int:
        """The size of those keys and their right values."""
        return sum(task.differing_bytes for task in self.tasks)

    @property
    def damaged(self) -> str | None:
        """The first fault of the changelog."""
        return next((task.damaged for task in self.tasks if task.damaged), None)

    @property
    def summary(self) -> str:
        """The change of its changelog, as text."""
        if self.is_new is None:
            most = f"{MOST_KEYS_IN_PLACE} keys and {MOST_BYTES_IN_PLACE >> 20} MiB"
            return f"compared with all instances stopped: up to {most} are written into it, or all to a new one"
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


def needs_new_changelog(tasks: Sequence[TaskRepair], in_place: Iterable[StoreRepair]) -> bool | None:
    """Return whether all of a store is written to a new changelog; None if that is not known yet.

    `in_place` are the stores whose keys are written into their changelogs in the same transaction.
    """
    if any(task.damaged for task in tasks):
        return True
    if any(task.differing is None for task in tasks):
        return None
    differing = sum(task.differing or 0 for task in tasks)
    others = list(in_place)
    keys = differing + sum(store.differing for store in others)
    size_bytes = sum(task.differing_bytes for task in tasks) + sum(store.differing_bytes for store in others)
    # Local stores continue with the tail of a changelog that stays. If another copy was right, they may be wrong in
    # more keys. So may a second local copy that is up to date, which would not read the tail.
    by_local = all(task.source is SourceOfState.LOCAL and task.is_alone for task in tasks if task.is_judge)
    return differing > 0 and not (by_local and _fits(keys, size_bytes))


def _fits(keys: int, size_bytes: int) -> bool:
    """Whether one transaction may hold that much."""
    return keys <= MOST_KEYS_IN_PLACE and size_bytes <= MOST_BYTES_IN_PLACE

"""The plan of an upgrade: what happens to every store, how many keys that concerns, and why it may be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.errors import StartRefused
from tidemark.registry.compatibility import StoreChange, StoreChangeKind


@dataclass(frozen=True)
class UpgradePlan:
    """The plan of an upgrade. `keys` counts the live keys of all tasks that are copied or discarded, by old store.

    `waiting` counts the source offsets that are not committed yet, by topic: the new version begins there. `left` are
    topics that nothing refers to afterwards. `added_subtopologies` are the numbers of new sub-topologies.
    """

    application_id: str
    from_version: str
    to_version: str
    obstacles: tuple[str, ...]
    changes: tuple[StoreChange, ...]
    keys: Mapping[str, int]
    waiting: Mapping[str, int]
    left: tuple[str, ...]
    added_subtopologies: tuple[int, ...]

    @property
    def refused(self) -> tuple[str, ...]:
        """Every reason why the upgrade is refused, each with its remedy."""
        stores = (c for c in self.changes if c.change_kind is StoreChangeKind.REFUSED)
        return (*self.obstacles, *(f"store {c.name}: {c.why}; {c.remedy}" for c in stores))

    @property
    def lost(self) -> Mapping[str, int]:
        """The number of keys that are discarded, by old store."""
        return {c.was: self.keys.get(c.was, 0) for c in self.changes if c.change_kind is StoreChangeKind.DROPPED}

    @property
    def warnings(self) -> list[str]:
        """The consequences beside those for stores, as text."""
        if not self.added_subtopologies:
            return []
        numbers = ", ".join(map(str, self.added_subtopologies))
        return [
            f"sub-topology {numbers} is new: no later upgrade can remove it, so none can go back to {self.from_version}"
        ]

    def require_possible(self) -> None:
        """Raise `StartRefused` with every reason against the upgrade."""
        if self.refused:
            summary = " | ".join(self.refused)
            raise StartRefused(
                f"{self.application_id} cannot be upgraded from version {self.from_version} to {self.to_version}; nothing "
                f"was changed: {summary}"
            )

"""What the person who looks at the page may do, as Airflow says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.overview.concerns import Action, ActionKind, stream_dag_id


@dataclass(frozen=True)
class Rights:
    """DAG ids. `readable`: may be seen. `triggerable`: may be run. `editable`: may be paused and unpaused."""

    readable: frozenset[str]
    triggerable: frozenset[str] = frozenset()
    editable: frozenset[str] = frozenset()

    def allows(self, action: Action) -> bool:
        """Return whether the button of this action is shown."""
        allowed = {
            ActionKind.TRIGGER: self.triggerable,
            ActionKind.ANSWER: self.triggerable,
            ActionKind.UNPAUSE: self.editable,
            ActionKind.LOOK: self.readable,
        }
        return action.dag_id in allowed[action.kind]

    def reads_data_of(self, topology: str) -> bool:
        """Return whether records of a stream may be shown: to those who may run its DAG, and so may change its state."""
        return stream_dag_id(topology) in self.triggerable

    def allowed(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions whose buttons are shown."""
        return [action for action in actions if self.allows(action)]

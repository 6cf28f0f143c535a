"""Reads from an application's drills what a restore plan needs: the suspected copies, and the rates of rebuilding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tidemark.errors import FactsUnavailable
from tidemark.names import TaskId
from tidemark.operations.drill_history.rates import last_rates, newest_rates
from tidemark.operations.drill_history.store_verdicts import DrillVerdict, Name, last_verdicts
from tidemark.recovery.candidates import Rates
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


@dataclass(frozen=True)
class DrillHistory:
    """The verdicts by task and store, and the rates, with a text that says where they come from."""

    verdicts: Mapping[Name, DrillVerdict]
    rates: Rates
    summary: str

    def suspicion(self, task: TaskId, store: str, copy: StateCopy) -> str | None:
        """Return why a copy is suspected, as a clause that follows its name; None if it is not.

        A suspected copy is only taken if an operator asks for its kind. If the last drill found that the live store
        differs, every local copy is suspected, and every savepoint that was taken of it since it was last known to be
        right. Standbys are filled from the changelog, so they are not suspected.
        """
        verdict = self.verdicts.get((task, store))
        if verdict is None:
            return None
        if copy.kind is SourceOfState.LOCAL:
            suspected = verdict.is_suspect
        else:
            is_savepoint = copy.kind is SourceOfState.SAVEPOINT
            suspected = is_savepoint and verdict.suspects_savepoint(PurePosixPath(copy.location).parent.name)
        if not suspected:
            return None
        return (
            f"{verdict.summary}; it is taken only when `{copy.kind.value}` is asked for as the source; if the changelog is "
            "the wrong one, repair it first: `tidemark repair run NAME`"
        )


def drill_history(settings: Settings, plan: TopologyPlan) -> DrillHistory:
    """Return the drill history of an application. `plan` has the generations of its stores. Blocks.

    If the database of facts does not answer, nothing is suspected and the rates are assumed, which `summary` says. What is
    restored is compared with its changelog in any case.
    """
    try:
        rates = last_rates(settings, plan.application_id)
        return DrillHistory(last_verdicts(settings, plan), rates.rates, rates.summary)
    except FactsUnavailable as error:
        assumed = newest_rates([])
        return DrillHistory({}, assumed.rates, f"{assumed.summary}; drills are not taken into account: {error}")

"""The plan of a restore: what is rebuilt, from which source, at what cost, and what is replaced. Frozen before it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.errors import StartRefused
from tidemark.names import TaskId, is_legal_name
from tidemark.recovery.candidates import MEASURED, Rates, RecoveryCandidate, rank_candidates
from tidemark.recovery.evidence import CommittedProgress, TaskEvidence
from tidemark.recovery.selection import EVERYTHING, Selection
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.recovery.start_plan import Fresh, Refuse, best_candidate, committed_progress_of, witnessed
from tidemark.stores.directory import folder_of

PLAN_VERSION = 2


@dataclass(frozen=True)
class StoreRestore:
    """The plan for restoring one store of one task.

    The changelog is read from `from_offset` to `end_offset`; `bytes_to_copy` are fetched before. `passed_over` gives,
    one line each, the reason why a source that seemed better was not taken.
    """

    task: str
    store: str
    source: SourceOfState
    location: str
    from_offset: int
    end_offset: int
    bytes_to_copy: int
    eta_s: float
    passed_over: tuple[str, ...]

    @classmethod
    def of(cls, task: TaskId, store: str, candidate: RecoveryCandidate, passed_over: tuple[str, ...]) -> StoreRestore:
        """Return the plan for restoring a store from a candidate."""
        return cls(
            str(task), store, candidate.kind, candidate.location, candidate.from_offset, candidate.end_offset,
            candidate.bytes_to_copy, round(candidate.eta_s, 3), passed_over,
        )  # fmt: skip


@dataclass(frozen=True)
class RestorePlan:
    """The plan of a restore.

    `committed` holds the committed offsets by task when the plan was made; a run restores to the offsets that are
    committed then. `not_rebuilt` are stores that an instance fills at its start (in memory, custom) or that cannot be
    restored (not logged). `source_lag` counts the source offsets that are unprocessed while the application is stopped.
    `selection` is what was asked for: if it names stores, all other stores of their tasks stay untouched. The estimates
    are based on `rates`, and `rates_from` says where those come from.
    """

    restore_id: str
    application_id: str
    topology_version: str
    created_ms: int
    asked: SourceOfState | None
    stores: tuple[StoreRestore, ...]
    not_rebuilt: tuple[str, ...]
    committed: Mapping[str, Mapping[str, int]]
    source_lag: int
    selection: Selection = EVERYTHING
    rates: Rates = MEASURED
    rates_from: str = ""

    @property
    def tasks(self) -> list[str]:
        """The tasks of which something is replaced."""
        return sorted({store.task for store in self.stores})

    @property
    def units(self) -> list[str]:
        """The paths of what is replaced as one, in an instance's folder of the application.

        A path is the folder of a task, or of one store if stores were selected.
        """
        if not self.selection.stores:
            return self.tasks
        return [str(folder_of(Path(), TaskId.parse(store.task), store.store)) for store in self.stores]

    @property
    def blast_radius(self) -> str:
        """The stores that are replaced and those that are not, as text."""
        if not self.selection.stores:
            others = "; no other task is touched" if self.selection.tasks else ""
            return f"{len(self.tasks)} task folders ({', '.join(self.tasks)}){others}"
        return (
            f"{len(self.stores)} store folders ({', '.join(f'{s.task}/{s.store}' for s in self.stores)}); every other store of "
            "these tasks keeps what it holds, and no other task is touched"
        )

    def eta_s(self, side_by_side: int) -> float:
        """Return the seconds of building and verifying, `side_by_side` stores at a time.

        Verifying reads each changelog again.
        """
        longest = max((store.eta_s for store in self.stores), default=0.0)
        verify_s = sum(store.end_offset / self.rates.changelog_offsets_per_s for store in self.stores)
        total = sum(store.eta_s for store in self.stores) + verify_s
        return max(longest, total / max(1, side_by_side))

    def to_json(self) -> str:
        """Return the plan as it is stored and printed with `--json`."""
        return json.dumps({"version": PLAN_VERSION, **asdict(self)}, indent=1, default=lambda source: source.value)

    @classmethod
    def from_json(cls, text: str) -> RestorePlan:
        """Read what `to_json` wrote. Raises `StartRefused`."""
        try:
            body = json.loads(text)
            if body.pop("version") != PLAN_VERSION:
                raise ValueError("another version")
            body["asked"] = SourceOfState(body["asked"]) if body["asked"] else None
            body["not_rebuilt"] = tuple(body["not_rebuilt"])
            body["selection"] = Selection(**{name: tuple(names) for name, names in body["selection"].items()})
            body["rates"] = Rates(**body["rates"])
            body["stores"] = tuple(
                StoreRestore(**{**s, "source": SourceOfState(s["source"]), "passed_over": tuple(s["passed_over"])})
                for s in body["stores"]
            )
            for store in body["stores"]:
                # Each is the name of a folder that is moved.
                if str(TaskId.parse(store.task)) != store.task:
                    raise ValueError(f"{store.task!r} is not a task")
                if not is_legal_name(store.store):
                    raise ValueError(f"{store.store!r} is not a store")
            return cls(**body)
        except (ValueError, KeyError, TypeError) as error:
            raise StartRefused(
                f"this is not a restore plan ({error}); make one with `tidemark restore plan NAME`"
            ) from error


@dataclass(frozen=True)
class TaskCandidates:
    """The findings for one task: its committed progress, and the best source of each store that is to be built."""

    task: TaskId
    committed: CommittedProgress
    candidates: Mapping[str, RecoveryCandidate]
    passed_over: Mapping[str, tuple[str, ...]]


def candidates_of_task(
    found: TaskEvidence,
    buildable: Sequence[str],
    only: SourceOfState | None,
    rates: Rates = MEASURED,
    *,
    planned: str | None = None,
    may_be_gone: bool = False,
) -> TaskCandidates | None:
    """Return the best source of each store in `buildable`; None for a task that has never run. Reads nothing.

    The source at the location `planned` is the best one unless it has a fault. A local store that would prevent a start
    (another layout, ahead of Kafka) is only ruled out here, because it will be replaced. With `may_be_gone`, the source
    topics may have deleted the next record to read. Raises `StartRefused` with the reason and the remedy if no source of
    state is left.
    """
    committed = (witnessed if may_be_gone else committed_progress_of)(found)
    if isinstance(committed, Fresh):
        return None
    if isinstance(committed, Refuse):
        raise StartRefused(f"{committed.reason}; {committed.remedy}")
    candidates: dict[str, RecoveryCandidate] = {}
    passed: dict[str, tuple[str, ...]] = {}
    for store in (store for store in found.stores if store.store in buildable):
        candidate = best_candidate(found, store, committed, rates, only, planned)
        if isinstance(candidate, Refuse):
            raise StartRefused(f"{candidate.reason}; {candidate.remedy}")
        candidates[store.store] = candidate
        passed[store.store] = tuple(
            candidate.fault for candidate in rank_candidates(found, store, committed, rates) if candidate.fault
        )
    return TaskCandidates(found.task, committed, candidates, passed)

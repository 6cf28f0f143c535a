"""A restore before it runs: a frozen plan that says what is rebuilt from where, what that costs, and what it touches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.errors import StartRefused
from tidemark.names import TaskId, is_legal_name
from tidemark.restore.selection import EVERYTHING, Selection
from tidemark.start.evidence import SourceOfState, Standing, TaskEvidence
from tidemark.start.plan import Fresh, Refuse, best_way, standing_of, witnessed
from tidemark.start.ways import MEASURED, Rates, Way, weigh
from tidemark.stores.directory import folder_of

PLAN_VERSION = 2


@dataclass(frozen=True)
class StoreRestore:
    """What becomes of one store of one task.

    The changelog is read from `from_offset` to `end_offset`; `bytes_to_copy` are fetched before. `passed_over` says in a
    line each why a better looking source was not taken.
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


@dataclass(frozen=True)
class RestorePlan:
    """The whole of it. `standing` is where Kafka stood by task when it was made; a run builds to where it stands then.

    `not_rebuilt` are stores that the start of an instance sees to by itself (in memory, custom) or that nobody can restore
    (not logged). `source_lag` counts offsets of the sources that wait while the application stands. `selection` is what was
    asked for: where it names stores, everything else of their tasks stays where it is, untouched. `rates` are those that the
    estimates rest on, and `rates_from` says where they come from.
    """

    restore_id: str
    application_id: str
    topology_version: str
    created_ms: int
    asked: SourceOfState | None
    stores: tuple[StoreRestore, ...]
    not_rebuilt: tuple[str, ...]
    standing: Mapping[str, Mapping[str, int]]
    source_lag: int
    selection: Selection = EVERYTHING
    rates: Rates = MEASURED
    rates_from: str = ""

    @property
    def tasks(self) -> list[str]:
        """Tasks of which something is replaced."""
        return sorted({store.task for store in self.stores})

    @property
    def units(self) -> list[str]:
        """What is replaced as one, by the task it is of: its folder, or those of the stores that were asked for.

        As paths in a holder's folder of the application.
        """
        if not self.selection.stores:
            return self.tasks
        return [str(folder_of(Path(), TaskId.parse(store.task), store.store)) for store in self.stores]

    @property
    def blast_radius(self) -> str:
        """What is replaced and what is not, in words."""
        if not self.selection.stores:
            others = "; no other task is touched" if self.selection.tasks else ""
            return f"{len(self.tasks)} task folders ({', '.join(self.tasks)}){others}"
        return (
            f"{len(self.stores)} store folders ({', '.join(f'{s.task}/{s.store}' for s in self.stores)}); every other store of "
            "these tasks keeps what it holds, and no other task is touched"
        )

    def eta_s(self, side_by_side: int) -> float:
        """Seconds of building and verifying with that many stores at a time; verifying reads each changelog once more."""
        longest = max((store.eta_s for store in self.stores), default=0.0)
        verify_s = sum(store.end_offset / self.rates.changelog_offsets_per_s for store in self.stores)
        total = sum(store.eta_s for store in self.stores) + verify_s
        return max(longest, total / max(1, side_by_side))

    def to_json(self) -> str:
        """As it is stored and printed with `--json`."""
        return json.dumps({"version": PLAN_VERSION, **asdict(self)}, indent=1, default=lambda source: source.value)

    @classmethod
    def from_json(cls, text: str) -> RestorePlan:
        """Read what `to_json` wrote; raises `StartRefused`."""
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
                    raise ValueError(f"{store.task!r} is no task")
                if not is_legal_name(store.store):
                    raise ValueError(f"{store.store!r} is no store")
            return cls(**body)
        except (ValueError, KeyError, TypeError) as error:
            raise StartRefused(
                f"this is not a restore plan ({error}); make one with `tidemark restore plan`"
            ) from error


@dataclass(frozen=True)
class TaskWays:
    """What was found for one task: where Kafka stands, and the best way of each store that is to be built."""

    task: TaskId
    standing: Standing
    ways: Mapping[str, Way]
    passed_over: Mapping[str, tuple[str, ...]]


def ways_of_task(
    found: TaskEvidence,
    buildable: Sequence[str],
    only: SourceOfState | None,
    rates: Rates = MEASURED,
    *,
    may_be_gone: bool = False,
) -> TaskWays | None:
    """The best way of each store in `buildable`; None for a task that has never run. Reads nothing.

    A local store that would stop a start (another layout, ahead of Kafka) is merely of no use here: it is replaced.
    `may_be_gone`: also where the sources do not hold any more what comes next. Raises `StartRefused` with the reason and
    the remedy where no way is left.
    """
    standing = (witnessed if may_be_gone else standing_of)(found)
    if isinstance(standing, Fresh):
        return None
    if isinstance(standing, Refuse):
        raise StartRefused(f"{standing.reason}; {standing.remedy}")
    ways: dict[str, Way] = {}
    passed: dict[str, tuple[str, ...]] = {}
    for store in (store for store in found.stores if store.store in buildable):
        way = best_way(found, store, standing, rates, only)
        if isinstance(way, Refuse):
            raise StartRefused(f"{way.reason}; {way.remedy}")
        ways[store.store] = way
        passed[store.store] = tuple(way.fault for way in weigh(found, store, standing, rates) if way.fault)
    return TaskWays(found.task, standing, ways, passed)

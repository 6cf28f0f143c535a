"""The report of a drill: figures per task and store and per way of rebuilding, and the findings that follow from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tidemark.restore.bounds import Figures, total
from tidemark.topology.plan import Guarantee, TopologyPlan
from tidemark.verdict import Finding, Verdict, worst


def not_compared(plan: TopologyPlan) -> tuple[str, ...]:
    """Return the stores that savepoints do not contain, each with the reason."""
    return tuple(f"{spec.name}: {spec.uncopied}" for spec in plan.stores if spec.uncopied is not None)


def is_drillable(plan: TopologyPlan) -> bool:
    """Whether a savepoint contains any of its stores."""
    return len(not_compared(plan)) < len(plan.stores)


def nothing_to_drill(application_id: str, left_out: Sequence[str]) -> Finding:
    """Return the one finding about an application that cannot be drilled. `left_out` is the result of `not_compared`."""
    summary = f" ({'; '.join(left_out)})" if left_out else ""
    message = f"savepoints contain none of its stores{summary}: there is nothing to rebuild and to compare"
    return Finding(application_id, Verdict.NOT_ENOUGH_EVIDENCE, message)


class RebuildMethod(StrEnum):
    """The method by which the state was rebuilt up to the savepoint that it was compared with."""

    CHANGELOG = "whole changelog"
    SAVEPOINT = "savepoint and tail"
    FOLLOWED = "following the changelog"


@dataclass(frozen=True)
class StoreDrill:
    """The drill of one store of one task: rebuilt in one way and compared with savepoint `savepoint_id`.

    The changelog was read from `from_offset` to `end_offset`, which gave `records` records; `keys` and `bytes` (of keys
    and values) are those of the rebuilt store, `seconds` is the time of building it. `compared`, `left_out`,
    `differing`, `deleted` and `is_whole` are as in `restore.bounds.Figures`; `altered`, `missing` and `extra` count how
    the differing keys differ.
    `message_without_records` is the message without the keys and values of `first`. `value_layout` is that of the live store's
    checkpoint, with its generation.
    """

    task: str
    store: str
    way: RebuildMethod
    savepoint_id: str
    verdict: Verdict
    message: str
    from_offset: int = 0
    end_offset: int = 0
    records: int = 0
    keys: int = 0
    bytes: int = 0
    seconds: float = 0.0
    compared: int = 0
    left_out: int = 0
    differing: int = 0
    deleted: int = 0
    is_whole: bool = False
    altered: int = 0
    missing: int = 0
    extra: int = 0
    first: tuple[str, ...] = ()
    message_without_records: str = ""
    value_layout: str = ""

    @property
    def figures(self) -> Figures:
        """The figures of the comparison."""
        return Figures(self.compared, self.left_out, self.differing, self.deleted, self.is_whole)

    @property
    def rates(self) -> dict[str, float]:
        """The amounts per second of building; empty if the time was too short to measure."""
        if self.seconds <= 0:
            return {}
        figures = {"records": self.records, "keys": self.keys, "bytes": self.bytes}
        return {f"{name}_per_s": round(figure / self.seconds, 1) for name, figure in figures.items()}

    @property
    def finding(self) -> Finding:
        """The finding that is written to the history of verdicts."""
        evidence = {**asdict(self), **self.rates}
        for summary in ("task", "store", "verdict", "message"):
            del evidence[summary]
        return Finding(f"{self.task}/{self.store} by {self.way}", self.verdict, self.message, evidence)


@dataclass(frozen=True)
class MethodDrill:
    """One way of rebuilding, over all tasks and stores.

    `rto_s` is the time from its beginning until every store was rebuilt. `rpo_offsets` and `rpo_s` are what the running
    application had committed at that time and the rebuilt state lacked: source offsets over all tasks, and the longest
    of the tasks' distances in commit time. All of it is in Kafka.
    """

    way: RebuildMethod
    rto_s: float
    rpo_offsets: int
    rpo_s: float


@dataclass(frozen=True)
class DrillReport:
    """The report of a drill. Times are epoch milliseconds.

    `not_compared` are stores that savepoints do not contain, with the reason.

    `rates` are the fields of `recovery.candidates.Rates` that it measured, see `tidemark.operations.drill_history.rates`.
    """

    drill_id: str
    application_id: str
    topology_version: str
    guarantee: Guarantee
    started_ms: int
    ended_ms: int
    savepoints: tuple[str, ...]
    stores: tuple[StoreDrill, ...]
    ways: tuple[MethodDrill, ...]
    followed_batches: int
    follow_batches: int
    not_compared: tuple[str, ...]
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """The findings: of every store and way, whether any key was compared, and whether enough batches were followed.

        There is only one finding if there was nothing to rebuild.
        """
        if not self.stores:
            return [nothing_to_drill(self.application_id, self.not_compared)]
        return [*(store.finding for store in self.stores), *self._compared(), self._followed()]

    def figures(self, way: RebuildMethod) -> Figures:
        """Return the figures of all stores that were rebuilt in one way."""
        return total(store.figures for store in self.stores if store.way is way)

    def _compared(self) -> list[Finding]:
        """Return one finding per way that was used. Stores that are all empty prove nothing."""
        return [self._compared_by(way) for way in RebuildMethod if any(store.way is way for store in self.stores)]

    def _compared_by(self, way: RebuildMethod) -> Finding:
        figures = self.figures(way)
        subject, evidence = f"keys compared by {way}", asdict(figures)
        if figures.compared:
            return Finding(subject, Verdict.OK, figures.summary, evidence)
        return Finding(
            subject,
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"{figures.summary}: nothing shows that its state can be rebuilt; drill again when it has state",
            evidence,
        )

    def _followed(self) -> Finding:
        evidence = {"batches": self.followed_batches, "wanted": self.follow_batches}
        if self.followed_batches >= self.follow_batches:
            return Finding("following", Verdict.OK, f"{self.followed_batches} batches were followed", evidence)
        return Finding(
            "following",
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"only {self.followed_batches} of {self.follow_batches} batches were committed meanwhile: drill while there is "
            "input, or follow for longer",
            evidence,
        )

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return worst(self.findings)

    @property
    def claim(self) -> str:
        """The meaning of a passed drill under the application's guarantee (see invariant: order of at_least_once)."""
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return "stores equal their changelogs, whose records count every input once"
        return "stores equal their changelogs; under at_least_once inputs may be counted twice in both"

    def way(self, way: RebuildMethod) -> MethodDrill | None:
        """Return the result of one way; None if it was not used."""
        return next((one for one in self.ways if one.way is way), None)

    def per_store(self) -> list[dict[str, Any]]:
        """Return the three figures of each store and way, with its verdict, for a DAG to pass on."""
        return [
            {
                "task": store.task,
                "store": store.store,
                "by": str(store.way),
                "verdict": str(store.verdict),
                "compared": store.compared,
                "left_out": store.left_out,
                "differing": store.differing,
            }
            for store in self.stores
        ]

    def to_dict(self) -> Mapping[str, Any]:
        """Return the report as JSON values."""
        stores = [{**asdict(store), **store.rates} for store in self.stores]
        figures = {way.value: asdict(self.figures(way)) for way in RebuildMethod}
        body = {**asdict(self), "stores": stores, "figures": figures, "verdict": self.verdict, "claim": self.claim}
        found: Mapping[str, Any] = json.loads(json.dumps(body, default=lambda summary: summary.value))
        return found

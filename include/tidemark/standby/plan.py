"""The plan of a standby: which stores it follows, of every task of an application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.errors import PreflightFailed, TopicMissing
from tidemark.kafka.topics import task_ids
from tidemark.names import TaskId, commits_topic
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import StoreSpec, TopologyPlan


@dataclass(frozen=True)
class StandbyPlan:
    """The stores to follow, by task, and the reasons why others are left out, by store."""

    stores: Mapping[TaskId, tuple[StoreSpec, ...]]
    left_out: Mapping[str, str]


def plan_standby(plan: TopologyPlan, partitions: Mapping[str, int]) -> StandbyPlan:
    """Return the plan for all tasks of all sub-topologies. `partitions` are the cluster's partition counts by topic.

    Raises `TopicMissing`, which names a topic that does not exist yet, and `PreflightFailed` if there is nothing to follow.
    """
    followed: dict[int, tuple[StoreSpec, ...]] = {}
    left_out: dict[str, str] = {}
    _require(plan, commits_topic(plan.application_id), partitions)
    for subtopology in plan.subtopologies:
        own: list[StoreSpec] = []
        for spec in subtopology.stores:
            why = spec.uncopied
            if why is None:
                _require(plan, changelog_of(plan.application_id, spec), partitions)
                own.append(spec)
            else:
                left_out[spec.name] = why
        for topic in subtopology.source_topics:
            _require(plan, topic, partitions)
        followed[subtopology.index] = tuple(own)
    stores = {task: followed[task.subtopology] for task in task_ids(plan, partitions)}
    if not any(stores.values()):
        raise PreflightFailed(
            f"{plan.application_id} has no store that a standby could follow: it needs one that is logged and held by RocksDB"
        )
    return StandbyPlan({task: specs for task, specs in stores.items() if specs}, left_out)


def _require(plan: TopologyPlan, topic: str, partitions: Mapping[str, int]) -> None:
    if topic not in partitions:
        raise TopicMissing(
            f"topic {topic} of {plan.application_id} does not exist yet: start an instance, which creates it"
        )

"""Reading of `<app>-topology`. A start derives the plan with the present names from it, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka.admin import AdminClient

from tidemark.errors import StartRefused
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.committed_reader import read_committed_until, stalled_after
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.names import TopicPartition, changelog_topic, commits_topic, topology_topic
from tidemark.registry.compatibility import StoreChangeKind, carry, unwritten_columns
from tidemark.registry.declarations import NOTHING
from tidemark.registry.description import Description, describe_state, with_generations
from tidemark.registry.kept_history import KeptHistory
from tidemark.registry.routing import routed
from tidemark.registry.topic_identities import BEGIN_WITHOUT_STATE, Identities, LostTopic, TopicUse, format_lost
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan


def recorded(
    settings: Settings, admin: AdminClient, plan: TopologyPlan, partitions: Mapping[str, int]
) -> Description | None:
    """Return the description of the application's state at its last commit; None if it has never committed.

    `plan` is the topology module's, `partitions` are of all topics of the cluster. Waits for an open transaction.
    Blocks; raises `OutcomeUnknown`, and `StartRefused` if the description or the commits topic was lost.
    """
    app = plan.application_id
    last = _last_value(settings, admin, TopicPartition(topology_topic(app), 0), partitions)
    if last is None:
        _require_no_traces(settings, admin, plan, partitions)
        return None
    if commits_topic(app) not in partitions:
        known = Description.from_bytes(last).topic_ids.get(commits_topic(app), "")
        raise StartRefused(format_lost(app, [LostTopic(commits_topic(app), TopicUse.COMMITS, known, None)]))
    return Description.from_bytes(last)


def _require_no_traces(
    settings: Settings, admin: AdminClient, plan: TopologyPlan, partitions: Mapping[str, int]
) -> None:
    """Raise `StartRefused` if there is no description, but traces of an application that must have had one."""
    app, commits = plan.application_id, commits_topic(plan.application_id)
    traces = [
        f"{commits}[{number}] holds commit records"
        for number in range(partitions.get(commits, 0))
        if _last_value(settings, admin, TopicPartition(commits, number), partitions) is not None
    ]
    traces += [f"there is {topic}" for topic in later_generations(plan, partitions)]
    if traces:
        raise StartRefused(
            f"{app}: {topology_topic(app)} was deleted or emptied, but the application has run ({traces[0]}): only "
            "that topic says which changelogs its stores have and how its sources are routed, and neither is guessed. "
            f"Bring the last record of {topology_topic(app)} back from a copy of that topic; {BEGIN_WITHOUT_STATE}"
        )


def later_generations(plan: TopologyPlan, topics: Collection[str]) -> list[str]:
    """Return the changelogs that an upgrade, a rescale or a reset has made. A pure function.

    If one of them exists, `<app>-topology` must hold a description.
    """
    names = [re.escape(changelog_topic(plan.application_id, spec.name)) + r"-[1-9]\d*" for spec in plan.stores]
    return sorted(topic for topic in topics if any(re.fullmatch(name, topic) for name in names))


def _last_value(
    settings: Settings, admin: AdminClient, place: TopicPartition, partitions: Mapping[str, int]
) -> bytes | None:
    """Return the last committed value of a compacted topic's partition; None if there is none. Blocks."""
    if place.topic not in partitions:
        return None
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    low, end = ends.beginnings([place])[place], ends.of([place])[place]
    client: Mapping[str, Any] = librdkafka_config(settings)
    last: bytes | None = None
    for batch in read_committed_until(
        client, place, low, end, stalled_after_s=stalled_after(settings), should_continue=lambda: True
    ):
        last = next((value for value in reversed(batch.values) if value is not None), last)
    return last


def resolved(plan: TopologyPlan, found: Description | None, partitions: Mapping[str, int]) -> TopologyPlan:
    """Return the module's plan as it runs now: each store with its generation, its sources routed if it was rescaled. Pure.

    `partitions` are of all topics; a missing one is reported elsewhere. Raises `StartRefused` if the plan keeps another
    state.
    """
    if found is None:
        return plan
    require_same(found, plan, partitions)
    require_partitions(found, partitions)
    return named(plan, found)


def require_same(found: Description, plan: TopologyPlan, partitions: Mapping[str, int]) -> None:
    """Raise `StartRefused` if the module's plan keeps another state than the recorded one, or cannot read its own records."""
    own = describe_state(plan, partitions)
    if not own.keeps_the_same(found) or unwritten_columns(found, own):
        raise StartRefused(
            f"{plan.application_id}: the state that version {plan.version} keeps is not the state that version "
            f"{found.version} left ({_difference(found, own)}): `tidemark upgrade plan NAME` shows what carries over, and "
            "`tidemark upgrade run NAME` does it; or bring the old topology back"
        )


def named(plan: TopologyPlan, found: Description | None) -> TopologyPlan:
    """Return the module's plan with the names in use, whatever else has changed."""
    if found is None or plan.routed:
        return plan
    own = with_generations(plan, {name: store.spec.generation for name, store in found.stores.items()})
    return routed(own, found.routing) if found.routing else own


def describe_resolved(
    plan: TopologyPlan,
    found: Description | None,
    partitions: Mapping[str, int],
    topic_ids: Mapping[str, str],
    kept_history: Mapping[str, KeptHistory],
) -> Description:
    """Return the description that the first commit of the module's plan writes, based on `found`."""
    if found is None:
        return replace(describe_state(plan, partitions), topic_ids=topic_ids, kept_history=kept_history)
    own = with_generations(plan, {name: store.spec.generation for name, store in found.stores.items()})
    return replace(describe_state(own, partitions).continuing(found), topic_ids=topic_ids, kept_history=kept_history)


def require_topics(plan: TopologyPlan, found: Description, settings: Settings, admin: AdminClient) -> None:
    """Raise `StartRefused` if a topic that state depends on was deleted or created again since the last commit. Blocks.

    `plan` has the names in use. The message names each topic, what is lost, and the remedy.
    """
    lost = identities_of(found, settings, admin).lost(plan)
    if lost:
        raise StartRefused(format_lost(plan.application_id, lost.values()))


def identities_of(found: Description | None, settings: Settings, admin: AdminClient) -> Identities:
    """Return the topic ids of a description, with a function that asks Kafka for the present ones."""
    return Identities({} if found is None else found.topic_ids, lambda topics: topic_ids(admin, topics, settings))


def require_partitions(found: Description, partitions: Mapping[str, int], *, may_have_more: bool = False) -> None:
    """Raise `StartRefused` if a topic has another number of partitions than at the last commit.

    A routed topic may have more, and any topic with `may_have_more`.
    """
    for topic, before in found.partitions.items():
        now = partitions.get(topic, before)
        if now < before or (now > before and not (found.routing or may_have_more)):
            raise StartRefused(
                f"{found.application_id}: {topic} has {now} partitions, it had {before} when the application last ran: "
                f"records of one key are now in two of them; `tidemark rescale run NAME --tasks {now}` brings records and "
                "state of a key together"
            )


def resolved_plan(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> TopologyPlan:
    """Call `resolved` with what the cluster has. Blocks. Raises `StartRefused`, `OutcomeUnknown`."""
    partitions = partition_counts(admin, settings)
    return resolved(plan, recorded(settings, admin, plan, partitions), partitions)


def _difference(found: Description, own: Description) -> str:
    """Return the first difference as text."""
    if [s.sources for s in found.subtopologies] != [s.sources for s in own.subtopologies]:
        return "the topics that it reads"
    changes = carry(found, own, NOTHING)
    worst = [c for c in changes if c.change_kind is StoreChangeKind.REFUSED] or [
        c for c in changes if c.change_kind is not StoreChangeKind.KEPT
    ]
    if worst:
        return f"store {worst[0].name}: {worst[0].why}"
    for topic, columns in unwritten_columns(found, own).items():
        return f"it reads {', '.join(columns)} from {found.routed_topic(topic)}, whose records may still lack that"
    return "how its keys are removed"


def named_plan(plan: TopologyPlan, settings: Settings, admin: AdminClient) -> TopologyPlan:
    """Return what `named` makes of the plan and the description in the cluster; to look at an application, not to run it.

    Blocks. Raises `OutcomeUnknown`.
    """
    return named(plan, recorded(settings, admin, plan, partition_counts(admin, settings)))

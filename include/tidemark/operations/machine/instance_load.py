"""How much each instance on this machine has to do: its lag, its memory, and why it waits or what it restores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets, committed_offsets
from tidemark.names import TopicPartition
from tidemark.processes import Identity
from tidemark.settings import Settings
from tidemark.supervision.hold import read_hold
from tidemark.supervision.local_instances import LocalInstance, RunningRestore, local_instances
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

_BROKER_TIMEOUT_S = 5.0
"""The longest wait for one request: somebody is looking at the screen."""


@dataclass(frozen=True)
class Lags:
    """The lag in offsets of the partitions that each instance holds, by the instance's name.

    `fault` says why it is not known of some; it is empty if all could be asked for.
    """

    offsets: Mapping[str, int]
    fault: str = ""


NOT_ASKED = Lags({})


@dataclass(frozen=True)
class InstanceLoad:
    """One instance. `memory_bytes` is that of its processes; `note` says why it waits or what it restores, or is empty."""

    instance: LocalInstance
    lag_offsets: int | None
    memory_bytes: int | None
    note: str


def instance_loads(settings: Settings, now_s: float, lags: Lags) -> list[InstanceLoad]:
    """Return all instances and standbys. Reads files and the process table; blocks for a few milliseconds."""
    found = []
    for instance in local_instances(settings.var_dir, now_s):
        hold = read_hold(settings.var_dir, instance.application)
        if instance.outage is not None:
            note = f"waits for brokers: {instance.outage.why}"
        elif hold is not None:
            note = f"held by {hold.by}"
        else:
            note = format_restore(instance.restore)
        memory_bytes = _memory(instance.process) if instance.is_alive and instance.process is not None else None
        found.append(InstanceLoad(instance, lags.offsets.get(instance.name), memory_bytes, note))
    return found


def format_restore(restore: RunningRestore | None) -> str:
    """Return what an instance restores; empty if it restores nothing."""
    if restore is None:
        return ""
    left = "" if restore.remaining_s is None else f", {restore.remaining_s:.0f} s left"
    return f"restores {restore.store} of {restore.changelog}{left}"


def _memory(process: Identity) -> int | None:
    """Return the resident bytes of a process and its children, such as the JVM of a Spark driver; None if it is gone."""
    running = process.process()
    if running is None:
        return None
    total = 0
    with suppress(psutil.Error):
        for each in [running, *running.children(recursive=True)]:
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


class LagReader:
    """Asks Kafka for the lag of instances: one request for committed offsets per application, and one for all ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timeout_s = min(settings.broker_timeout_ms / 1000, _BROKER_TIMEOUT_S)
        self._config = librdkafka_config(settings)
        self._ends = EndOffsets(AdminClient(self._config), self._timeout_s)
        self._plans: dict[str, TopologyPlan | None] = {}

    def read(self, instances: Iterable[LocalInstance]) -> Lags:
        """Return the lag of all running instances. Blocks for at most a few seconds; never raises."""
        held = {
            instance.name: (instance.application, self._sources(instance))
            for instance in instances
            if instance.is_alive and isinstance(instance.instance, int)
        }
        by_application: dict[str, set[TopicPartition]] = {}
        for application, partitions in held.values():
            by_application.setdefault(application, set()).update(partitions)
        committed: dict[tuple[str, TopicPartition], int] = {}
        try:
            for application, places in by_application.items():
                answers = committed_offsets(self._config, application, sorted(places), self._timeout_s)
                committed |= {(application, place): answer.offset for place, answer in answers.items()}
            ends = self._ends.of(sorted({place for _, place in committed}))
        except (KafkaException, TidemarkError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            return Lags({}, f"the lag is not known: {reason}")
        return Lags(
            {
                name: sum(ends[place] - committed[application, place] for place in partitions)
                for name, (application, partitions) in held.items()
                if partitions and all((application, place) in committed for place in partitions)
            }
        )

    def _sources(self, instance: LocalInstance) -> list[TopicPartition]:
        """Return the partitions that an instance reads: those that it holds, and those of the other sources with them."""
        held = []
        for text in instance.partitions or ():
            with suppress(ValueError):
                held.append(TopicPartition.parse(text))
        plan = self._plan(str(instance.topology))
        return held if plan is None else read_with(plan, held)

    def _plan(self, topology: str) -> TopologyPlan | None:
        if topology not in self._plans:
            try:
                self._plans[topology] = load(topology).plan()
            except TidemarkError:
                # Without its module, only the partitions that the group assigns are known.
                self._plans[topology] = None
        return self._plans[topology]


def read_with(plan: TopologyPlan, held: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the held partitions of lead topics, and the partitions of the other sources that are read with them."""
    others = {s.lead.topic: s.source_topics for s in plan.subtopologies}
    return sorted(
        {TopicPartition(topic, place.partition) for place in held for topic in others.get(place.topic, (place.topic,))}
    )

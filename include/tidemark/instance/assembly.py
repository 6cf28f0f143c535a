"""Assembly of an instance: its process lock, its checks of broker and topics, and every part that it works with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient
from rocksdict import Cache

from tidemark.clock import wall_clock_ms
from tidemark.commit.commit import Committer
from tidemark.commit.lost_markers import LostMarkers
from tidemark.commit.metadata import verify_metadata_fits
from tidemark.commit.producer import BatchProducer, IdempotentProducer, TransactionalProducer
from tidemark.commit.takeover import Takeover
from tidemark.errors import TaskLocked
from tidemark.failpoint import Probe
from tidemark.instance.batch_traces import BatchTraces, batch_traces
from tidemark.instance.counters import InstanceCounters
from tidemark.instance.instance import Instance
from tidemark.instance.listeners import RestoreBoardListener, instance_listeners
from tidemark.instance.metrics import BROKER_ANSWER_S, InstanceMetrics
from tidemark.instance.resolve_plan import ResolvedPlan
from tidemark.instance.source import AttachedSource
from tidemark.instance.source_watch import SourceWatch
from tidemark.instance.transaction_capacity import BatchSize, TransactionCapacity
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.cluster import ask_descriptions, offset_metadata_limit, topic_ids
from tidemark.kafka.committed_reader import stalled_after
from tidemark.kafka.member import Member, heartbeat_ms
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.preflight import preflight
from tidemark.kafka.purge import RepartitionPurge
from tidemark.kafka.record_sizes import size_limits
from tidemark.kafka.record_timestamps import sink_timestamp_bounds
from tidemark.kafka.second_copy import SecondCopyCheck
from tidemark.kafka.topic_config import changelog_policies
from tidemark.kafka.topics import format_partitions, task_ids, written_partitions
from tidemark.metrics.registry import MetricRegistry
from tidemark.names import group_instance_id, transactional_id
from tidemark.queries.active_stores import ActiveStores
from tidemark.queries.event_feed import EventFeed
from tidemark.queries.service import QueryService
from tidemark.recovery.facts import Witnesses
from tidemark.registry.topic_identities import Identities
from tidemark.restore.restorer import Restorer
from tidemark.restore.store_builder import StoreBuilder, StoreOpener
from tidemark.restore.task_opener import TaskOpener
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.final import LastSavepoint
from tidemark.savepoints.repository import SavepointRepository
from tidemark.savepoints.snapshot import LINKS_FOLDER, SavepointTaker
from tidemark.settings import Settings
from tidemark.standby.copies import StandbyCopies
from tidemark.stores.directory import InstanceDirectory
from tidemark.supervision.final_savepoint_request import leaving_path
from tidemark.supervision.hold import require_not_held
from tidemark.supervision.run_file import RunFile, read_run_file, run_file_path
from tidemark.supervision.state import StateMachine
from tidemark.tasks.sink_records import ValueWriter
from tidemark.topology.plan import Guarantee, TopologyPlan

_QUEUED_RECORDS_PER_BATCH_RECORD = 3


def make_instance(
    plan: TopologyPlan,
    settings: Settings,
    number: int,
    topology_name: str,
    probe: Probe,
    clock: Callable[[], int] = wall_clock_ms,
) -> Instance:
    """Take the process lock, check broker and topics, and return an instance that has not joined the group yet.

    Raises `TaskLocked` if a live process holds the folder, `ApplicationHeld` while a command changes the stopped
    application, `PreflightFailed` with what is missing.
    """
    app = plan.application_id
    require_not_held(settings.var_dir, app)
    client = librdkafka_config(settings)
    admin = AdminClient(client)
    resolved = ResolvedPlan.of(plan, settings, admin)
    plan = resolved.plan
    partitions = preflight(plan, settings, admin, resolved.committed)
    verify_metadata_fits(plan, lambda: offset_metadata_limit(admin, settings))
    ids = resolved.topic_ids(settings, admin)
    kept_history = resolved.kept_history(settings, admin, clock)
    limits = size_limits(plan, settings, admin)
    has_grown = resolved.has_grown(partitions)
    with ExitStack() as locked:
        directory = _lock_folder(settings, app, number)
        locked.callback(directory.close)
        # Registers schemas, which a launch that is refused must not do.
        writers = _value_writers(plan, settings)
        locked.pop_all()

    run_file_at = run_file_path(settings.var_dir, app, number)
    size = BatchSize(settings.max_batch_records, (read_run_file(run_file_at) or {}).get("batch_records"))
    run_file = RunFile(
        run_file_at,
        {
            "application_id": app,
            "topology": topology_name,
            "topology_version": plan.version,
            "instance": number,
            "acks": plan.acks.value,
            # Of each sub-topology, the lead topic first.
            "sources": [list(subtopology.source_topics) for subtopology in plan.subtopologies],
            "batch_records": size.records,
        },
    )
    # They remove old requests, so before the run file is written: a command that finds it there may write a new one.
    savepoints = SavepointTaker(app, plan.version, number, settings.var_dir, directory.folder, run_file, clock)
    last_savepoint = LastSavepoint(
        app,
        plan.version,
        task_ids(plan, partitions),
        leaving_path(settings.var_dir, app, number),
        directory.folder / LINKS_FOLDER,
        settings.last_savepoint_timeout_ms / 1000,
        clock,
    )
    restores = RestoreBoardListener()
    events = EventFeed(str(clock()))
    counters = InstanceCounters(app, clock)
    traces = batch_traces(settings, app, number)
    tracing: tuple[BatchTraces, ...] = () if traces is None else (traces,)
    parts = (restores, counters)
    listeners = instance_listeners(plan, settings, number, client, run_file, clock, parts, events, tracing)
    states = StateMachine(app, number, listeners.on_change)
    listeners.on_change(states.state, states.state)

    lock, changed = threading.RLock(), threading.Event()
    member_config = {
        **client,
        "group.id": app,
        "group.instance.id": group_instance_id(app, number),
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": heartbeat_ms(settings),
    }
    lead_topics = [subtopology.lead.topic for subtopology in plan.subtopologies]
    member = Member(member_config, lead_topics, lock, changed.set)
    generations = {spec.name: spec.generation for spec in plan.stores}
    active_stores = ActiveStores(str(number), generations, member.ownership.epoch, restores)
    second_copy = SecondCopyCheck(settings, admin, app, number)
    producer = _producer(plan, settings, {**client, **limits.producer_config()}, number, member)
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    committer = Committer(
        application_id=app,
        topology_version=plan.version,
        instance=number,
        producer=producer,
        member=member,
        ends=ends,
        sink_partitions=tuple(format_partitions(plan, partitions)),
        lock=lock,
        clock=clock,
        probe=probe if traces is None else traces.timed(probe),
        timestamp_bounds=sink_timestamp_bounds(plan, settings, admin),
        limits=limits,
        description=resolved.description(partitions, ids, kept_history),
        guarantee=plan.guarantee,
        lost_markers=LostMarkers(producer, admin, ends, settings, written_partitions(plan, partitions))
        if isinstance(producer, TransactionalProducer)
        else None,
    )

    attached = AttachedSource()
    identities = Identities(ids, lambda topics: topic_ids(admin, topics, settings))
    cache = Cache(settings.store_cache_bytes)
    stores = StoreOpener(settings, cache, clock)
    restorer = Restorer(client, stalled_after(settings), listeners, probe, attached, clock)
    copies = SavepointCopies(SavepointRepository(settings.savepoint_location, app))
    opener = TaskOpener(
        plan=plan,
        settings=settings,
        directory=directory,
        member=member,
        witnesses=Witnesses(
            plan, settings, client, ends, changelog_policies(plan), clock, identities, kept_history=kept_history
        ),
        opener=stores,
        builder=StoreBuilder(stores, restorer, [StandbyCopies(settings.state_dir, app), copies]),
        sink_partitions=partitions,
        limits=limits,
        writers=writers,
        takeover=Takeover(plan, settings, client, admin, ends),
        number=number,
    )
    metrics = InstanceMetrics(
        plan, counters, active_stores.owned, active_stores.restores, EndOffsets(admin, BROKER_ANSWER_S), size, cache
    )
    scrape = partial(MetricRegistry({"application": app, "instance": str(number)}).scrape, metrics.read)
    return Instance(
        settings=settings,
        number=number,
        plan=plan,
        partitions=partitions,
        has_grown=has_grown,
        description=resolved.watch,
        clock=clock,
        probe=probe,
        admin=admin,
        directory=directory,
        run_file=run_file,
        size=size,
        capacity=TransactionCapacity(settings.transaction_timeout_ms),
        listeners=listeners,
        states=states,
        lock=lock,
        changed=changed,
        member=member,
        second_copy=second_copy,
        committer=committer,
        attached=attached,
        source_watch=SourceWatch(plan, ids, partitions, lambda topics: ask_descriptions(admin, topics, settings)),
        opener=opener,
        savepoints=savepoints,
        last_savepoint=last_savepoint,
        purge=RepartitionPurge(plan, admin, settings.repartition_purge_interval_ms),
        active_stores=active_stores,
        commit_listeners=(counters, *tracing),
        queries=QueryService(
            plan, settings, task_ids(plan, partitions), active_stores, scrape, client, run_file, events
        ),
    )


def _value_writers(plan: TopologyPlan, settings: Settings) -> Mapping[str, ValueWriter]:
    if not plan.has_avro:
        return {}
    # The registry's client takes 0.4 s to import.
    from tidemark.tasks.avro_writer import registered_writers

    return registered_writers(plan, settings)


def _lock_folder(settings: Settings, application_id: str, instance: int) -> InstanceDirectory:
    """Take the process lock. A command that holds the application takes its hold before the folders, so one sees the other.

    Raises `TaskLocked`, `ApplicationHeld`.
    """
    with ExitStack() as locked:
        try:
            directory = InstanceDirectory(settings.state_dir, application_id, instance)
        except TaskLocked:
            require_not_held(settings.var_dir, application_id)
            raise
        locked.callback(directory.close)
        require_not_held(settings.var_dir, application_id)
        locked.pop_all()
    return directory


def _producer(
    plan: TopologyPlan, settings: Settings, client_config: Mapping[str, Any], number: int, member: Member
) -> BatchProducer:
    """Return the producer that the plan's guarantee needs."""
    name = transactional_id(plan.application_id, number)
    timeout_ms = settings.transaction_timeout_ms
    queued = max(100_000, settings.max_batch_records * _QUEUED_RECORDS_PER_BATCH_RECORD)
    if plan.guarantee is Guarantee.AT_LEAST_ONCE:
        return IdempotentProducer(client_config, name, timeout_ms, queued, member.commit, plan.acks, plan.output_topics)
    return TransactionalProducer(client_config, name, timeout_ms, queued)

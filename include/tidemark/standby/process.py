"""A standby as a process: follows, answers, and says where it stands, until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient
from rocksdict import Cache

from tidemark.broker.clients import librdkafka_config
from tidemark.broker.offsets import EndOffsets
from tidemark.broker.topics import partition_counts
from tidemark.change.recorded import require_topics, settled_description
from tidemark.changelog.policy import changelog_policies
from tidemark.clock import wall_clock_ms
from tidemark.instance.run_file import RunFile, standby_file_path
from tidemark.restore.building import StoreOpener
from tidemark.settings import Settings
from tidemark.standby.copies import standby_name, write_copies
from tidemark.standby.follower import Follower
from tidemark.standby.handover import Handovers
from tidemark.standby.pace import Pace, PaceMeter
from tidemark.standby.plans import plan_standby
from tidemark.start.witnesses import Witnesses
from tidemark.stores.directory import InstanceDirectory
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_TELL_S = 1.0

Tell = Callable[[Sequence[Pace]], None]
"""Shown the pace of all copies once a second; must not block."""


def run_standby(
    plan: TopologyPlan,
    settings: Settings,
    number: int,
    topology_name: str,
    stop: threading.Event,
    tell: Tell,
    clock: Callable[[], int] = wall_clock_ms,
) -> None:
    """Follow until `stop` is set. Leaves nothing open.

    Raises `TaskLocked` for a number that is taken, `PreflightFailed`, `StartRefused`, or `OutcomeUnknown`.
    """
    app = plan.application_id
    client = librdkafka_config(settings)
    admin = AdminClient(client)
    plan, found = settled_description(plan, settings, admin)
    if found is not None:
        require_topics(plan, found, settings, admin)
    standby = plan_standby(plan, partition_counts(admin, settings))
    if standby.left_out:
        log.info("left out: %s", ", ".join(f"{store} ({why})" for store, why in standby.left_out.items()))
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    witnesses = Witnesses(plan, settings, client, ends, changelog_policies(plan), clock)
    name = standby_name(number)
    with ExitStack() as opened:
        directory = InstanceDirectory(settings.state_dir, app, name)
        opened.callback(directory.close)
        about = {"application_id": app, "topology": topology_name, "topology_version": plan.version, "instance": name}
        run_file = RunFile(standby_file_path(settings.var_dir, app, number), about)

        def ended(failure: type[BaseException] | None, *_: object) -> None:
            run_file.update({"state": "NOT_RUNNING" if failure is None else "ERROR", "since_ms": clock()}, now=True)

        opened.push(ended)
        run_file.update({"state": "RESTORING", "since_ms": clock()}, now=True)
        handovers = Handovers(directory.folder)
        opened.callback(handovers.close)
        opener = StoreOpener(settings, Cache(settings.store_cache_bytes), clock)
        follower = Follower(witnesses, standby, directory, opener)
        opened.callback(follower.close)
        meter = PaceMeter()
        told_s = 0.0
        while not stop.is_set():
            follower.step()
            handovers.answer(follower.store)
            if time.monotonic() - told_s >= _TELL_S:
                told_s = time.monotonic()
                write_copies(directory.folder, follower.stores)
                paces = meter.measure(follower.stores)
                run_file.update(_state(paces))
                tell(paces)


def _state(paces: Sequence[Pace]) -> dict[str, object]:
    """What `tidemark status` shows."""
    return {
        "state": "RESTORING" if any(pace.lag_offsets > 0 for pace in paces) else "RUNNING",
        "records_per_second": round(sum(pace.records_per_second for pace in paces), 1),
        "partitions": sorted({pace.task for pace in paces}),
    }

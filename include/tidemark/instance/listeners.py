"""The listeners of an instance: log, run file, events topic, database of facts, and the user's own listeners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemark.database import FactsDatabase
from tidemark.events.database_sink import EventWriter
from tidemark.events.event import Rebalance, Waiting
from tidemark.events.feed_sink import FeedSink
from tidemark.events.listeners import Closable, InstanceListener, Listeners, LoggingListener
from tidemark.events.recorder import EventRecorder
from tidemark.events.topic import EventTopic
from tidemark.events.user_listener import load_listeners
from tidemark.names import events_topic
from tidemark.queries.active_stores import RestoreBoard
from tidemark.queries.event_feed import EventFeed
from tidemark.restore.listener import RestoreProgress
from tidemark.settings import Settings
from tidemark.supervision.run_file import RunFile
from tidemark.supervision.state import InstanceState
from tidemark.topology.plan import TopologyPlan


def instance_listeners(
    plan: TopologyPlan,
    settings: Settings,
    instance: int,
    client_config: Mapping[str, Any],
    run_file: RunFile,
    clock: Callable[[], int],
    parts: Sequence[InstanceListener],
    feed: EventFeed,
    closables: Sequence[Closable],
) -> Listeners:
    """Return all listeners, with the instance's own `parts`; `closables` are closed with them.

    Waits for neither broker nor database.

    Raises `InvalidSettings` if `listeners` or `facts_url` cannot be used.
    """
    app = plan.application_id
    facts = FactsDatabase(settings)
    users = load_listeners(settings.listeners, app, instance)
    sinks = (EventTopic(client_config, events_topic(app)), EventWriter(facts), FeedSink(feed))
    recorder = EventRecorder(app, plan.version, instance, clock, sinks)
    own: tuple[InstanceListener, ...] = (LoggingListener(), RunFileListener(run_file, clock), *parts, recorder)
    return Listeners((*own, *users), (*sinks, *users, *closables))


class RunFileListener:
    """Writes state, partitions and the current restore to the run file, where the supervisor shows them."""

    def __init__(self, run_file: RunFile, clock: Callable[[], int]) -> None:
        self._run_file = run_file
        self._clock = clock

    def on_change(self, new: InstanceState, old: InstanceState) -> None:
        self._run_file.update({"state": str(new), "since_ms": self._clock()}, now=True)

    def on_failure(self, failure: BaseException) -> None: ...

    def on_rebalance(self, rebalance: Rebalance) -> None:
        held = [str(p) for p in rebalance.held]
        self._run_file.update({"partitions": held, "generation": rebalance.generation}, now=True)

    def on_waiting(self, waiting: Waiting) -> None: ...

    def on_restore_start(self, progress: RestoreProgress) -> None: ...

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        restoring = {
            "store": progress.store,
            "changelog": str(progress.changelog),
            "start_offset": progress.start_offset,
            "next_offset": progress.next_offset,
            "end_offset": progress.end_offset,
            "records": progress.records,
            "records_per_second": round(progress.records_per_second),
            "remaining_s": progress.remaining_s,
        }
        self._run_file.update({"restoring": restoring})

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._run_file.update({"restoring": None})

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self._run_file.update({"restoring": None})


class RestoreBoardListener(RestoreBoard):
    """Shows the running restores to queries."""

    def on_change(self, new: InstanceState, old: InstanceState) -> None: ...

    def on_failure(self, failure: BaseException) -> None: ...

    def on_rebalance(self, rebalance: Rebalance) -> None: ...

    def on_waiting(self, waiting: Waiting) -> None: ...

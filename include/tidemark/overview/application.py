"""One application as the Streams page shows it, put together from files, the database of facts and Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidemark.overview.cases import CaseView, read_cases
from tidemark.overview.history import History
from tidemark.overview.live import LiveView
from tidemark.overview.store_history import SizeHistory
from tidemark.overview.stores import SavepointView, StoreView
from tidemark.settings import Settings
from tidemark.supervision.hold import Hold, read_hold, stale_because
from tidemark.supervision.local_instances import LocalInstance, RunningRestore, read_instances, read_standbys
from tidemark.supervision.state import InstanceState
from tidemark.topology.plan import TopologyPlan


class ApplicationState(StrEnum):
    """The state of an application, from all of its instances."""

    RUNNING = "Running"
    RESTORING = "Restoring"
    STARTING = "Starting"
    STOPPING = "Stopping"
    HELD = "Held"
    WAITING = "Waiting for brokers"
    STALLED = "No progress"
    DOWN = "Down"
    FAILED = "Failed"
    STOPPED = "Stopped"
    NEVER_RAN = "Never ran"
    UNKNOWN = "Not known"


@dataclass(frozen=True)
class ProcessFiles:
    """The state of an application's processes, from its files on this machine. `stale`: why its hold is stale."""

    instances: tuple[LocalInstance, ...] = ()
    standbys: tuple[LocalInstance, ...] = ()
    hold: Hold | None = None
    stale: str | None = None
    cases: tuple[CaseView, ...] = ()

    @property
    def ended(self) -> list[LocalInstance]:
        """The instances that do not run, the one that ended last first."""
        ended = (one for one in self.instances if not one.is_alive)
        return sorted(ended, key=lambda one: one.ended_ms or 0, reverse=True)


@dataclass(frozen=True)
class Application:
    """Everything that is known of one application at `now_ms`.

    `is_wanted`: its DAG is on, so its instances should run; None if Airflow does not have the DAG. A part that was not
    read yet is None; then `history_fault`, `live_fault` or `disk_fault` may say why. While `files` are not known they are
    empty, and `files_fault` may say why.
    """

    topology: str
    plan: TopologyPlan
    now_ms: int
    is_wanted: bool | None
    files: ProcessFiles
    history: History | None = None
    history_fault: str | None = None
    live: LiveView | None = None
    live_fault: str | None = None
    stores: tuple[StoreView, ...] | None = None
    sizes: SizeHistory | None = None
    savepoint: SavepointView | None = None
    disk_fault: str | None = None
    are_files_known: bool = True
    files_fault: str | None = None

    @property
    def application_id(self) -> str:
        """The application's id."""
        return self.plan.application_id

    @property
    def running(self) -> list[LocalInstance]:
        """The instances that are alive."""
        return [instance for instance in self.files.instances if instance.is_alive]

    @property
    def state(self) -> ApplicationState:
        """The state of the whole application."""
        return state_of(self.files, is_wanted=self.is_wanted) if self.are_files_known else ApplicationState.UNKNOWN

    @property
    def records_per_second(self) -> float | None:
        """The rate of all instances; None if none reports one."""
        rates = [one.records_per_second for one in self.running if one.records_per_second is not None]
        return sum(rates) if rates else None

    @property
    def last_commit_ms(self) -> int | None:
        """The time of the last commit, by the instances' own report or by the commit records."""
        found = [one.last_commit_ms for one in self.files.instances if one.last_commit_ms is not None]
        if self.live is not None and self.live.figures is not None and self.live.figures.last_commit_ms is not None:
            found.append(self.live.figures.last_commit_ms)
        return max(found, default=None)

    @property
    def commit_s(self) -> float | None:
        """How long the last commit took, of the slowest instance; None if none is known."""
        return max((one.last_commit_s for one in self.running if one.last_commit_s is not None), default=None)

    @property
    def delay_ms(self) -> int | None:
        """The time between the newest event and its commit; None if it is not known."""
        known = [one for one in self.running if one.last_commit_ms is not None and one.stream_time_ms is not None]
        newest = max(known, key=lambda one: one.last_commit_ms or 0, default=None)
        if newest is None or newest.last_commit_ms is None or newest.stream_time_ms is None:
            return None
        return max(0, newest.last_commit_ms - newest.stream_time_ms)

    @property
    def lag(self) -> int | None:
        """The offsets that wait in all sources; None if they are not known."""
        return None if self.live is None else self.live.total_lag

    @property
    def restores(self) -> list[RunningRestore]:
        """The restores that run now."""
        return [one.restore for one in self.running if one.restore is not None]

    @property
    def bytes_disk(self) -> int | None:
        """The bytes of the instances' stores on this machine; None if they were not measured yet.

        Copies that are known to be old do not count. So a task whose copies have no known age counts with each of them.
        """
        if self.stores is None:
            return None
        return sum(row.bytes_disk.value or 0 for row in self.stores if row.is_counted)


def read_files(settings: Settings, application_id: str, now_ms: int) -> ProcessFiles:
    """Read the files of an application's processes and cases. Takes milliseconds."""
    hold = read_hold(settings.var_dir, application_id)
    return ProcessFiles(
        tuple(read_instances(settings.var_dir, application_id)),
        tuple(read_standbys(settings.var_dir, application_id, now_ms / 1000)),
        hold,
        None if hold is None else stale_because(settings.var_dir, application_id, hold),
        tuple(read_cases(settings, application_id, now_ms)),
    )


def state_of(files: ProcessFiles, *, is_wanted: bool | None) -> ApplicationState:
    """Return the state of an application. A hold comes first, as nothing is launched under it."""
    if files.hold is not None:
        return ApplicationState.HELD
    running = [one for one in files.instances if one.is_alive]
    if any(one.outage is not None for one in files.instances) and is_wanted is not False:
        return ApplicationState.WAITING
    if not running:
        if is_wanted and _are_given_up(files.instances):
            return ApplicationState.FAILED
        if is_wanted:
            return ApplicationState.DOWN if files.instances else ApplicationState.STARTING
        # The DAG pauses itself only when the last of them fails. If others were stopped later, a person has paused it.
        if files.ended and files.ended[0].has_failed:
            return ApplicationState.FAILED
        return ApplicationState.STOPPED if files.instances else ApplicationState.NEVER_RAN
    return _worst_of(running)


def _are_given_up(ended: Sequence[LocalInstance]) -> bool:
    """Whether Airflow launches none of them again, while the run of the DAG may go on for a standby."""
    return any(one.has_given_up for one in ended) and all(one.has_given_up or one.exit_code == 0 for one in ended)


def _worst_of(running: Sequence[LocalInstance]) -> ApplicationState:
    states = {one.state for one in running}
    if InstanceState.RESTORING in states:
        return ApplicationState.RESTORING
    if states & {InstanceState.CREATED, InstanceState.REBALANCING}:
        return ApplicationState.STARTING
    if InstanceState.PENDING_SHUTDOWN in states:
        return ApplicationState.STOPPING
    return ApplicationState.STALLED if any(one.standstill for one in running) else ApplicationState.RUNNING

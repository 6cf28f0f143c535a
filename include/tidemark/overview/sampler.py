"""One sampler for everybody who looks at the page. It works only while somebody looks, and no request waits for Kafka.

Each kind of fact has its own thread and its own pace, so that a broker or a disk that does not answer delays nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemark.checks.store_growth import history_path
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.errors import ApplicationIdTaken, TidemarkError
from tidemark.overview.application import Application, ProcessFiles, read_files
from tidemark.overview.history import HISTORY_TABLES, History, read_history
from tidemark.overview.live import LiveReader, LiveView
from tidemark.overview.store_history import SizeHistory, SizeHistoryReader
from tidemark.overview.stores import SavepointView, StoreView, read_savepoint, read_stores
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load_all

log = logging.getLogger(__name__)

FILES_EVERY_S, HISTORY_EVERY_S, LIVE_EVERY_S, DISK_EVERY_S = 4.0, 15.0, 5.0, 60.0
UNWATCHED_S = 30.0
"""The threads end when nobody has looked for this long."""
_FIRST_S = 0.5
"""How long the first page waits for files and history, so that it is not empty."""
_LOOKS_UNTIL_READ = 8
"""At every eighth look, once in two minutes, the history of every application is read, also of those that seem unchanged."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The last answer of a reader. `fault` says why there is no newer one; both are None before the first answer."""

    value: T | None = None
    fault: str | None = None


class Watched(Generic[T]):
    """Calls `read` every few seconds on a thread of its own, as long as `reading` is called; then calls `release` once."""

    def __init__(
        self,
        name: str,
        every_s: float,
        read: Callable[[], T],
        release: Callable[[], None] = lambda: None,
        unwatched_s: float = UNWATCHED_S,
    ) -> None:
        self._name = name
        self._every_s = every_s
        self._read = read
        self._release = release
        self._unwatched_s = unwatched_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._answered = threading.Event()
        self._looked_s = 0.0
        self._reading: Reading[T] = Reading()

    def reading(self, wait_s: float = 0.0) -> Reading[T]:
        """Return the last answer, and keep the thread going. Waits up to `wait_s` for the first answer."""
        with self._lock:
            self._looked_s = time.monotonic()
            if self._thread is None:
                self._answered.clear()
                self._reading = Reading()
                self._thread = threading.Thread(target=self._run, name=f"overview-{self._name}", daemon=True)
                self._thread.start()
        self._answered.wait(wait_s)
        return self._reading

    @property
    def is_working(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None

    def _run(self) -> None:
        while True:
            try:
                self._reading = Reading(self._read())
            except TidemarkError as error:
                # The last value is kept out: an old figure beside a fault would be taken for a present one.
                self._reading = Reading(fault=str(error))
            except Exception as error:
                # It is shown, and the next look tries again.
                fault = f"{type(error).__name__}: see the log of the API server"
                if fault != self._reading.fault:
                    log.exception("failed to read the %s that the Streams page shows", self._name)
                self._reading = Reading(fault=fault)
            self._answered.set()
            time.sleep(self._every_s)
            with self._lock:
                if time.monotonic() - self._looked_s > self._unwatched_s:
                    # Under the lock: the next thread must not read before this one has let go.
                    self._release()
                    self._thread = None
                    return


@dataclass(frozen=True)
class LoadedTopologies:
    """The plans of the topology modules by name, and the errors of those that cannot be loaded.

    `copies` are modules with the application id of another one, by name, with the message that names the other one.
    """

    plans: Mapping[str, TopologyPlan]
    faults: Mapping[str, str]
    copies: Mapping[str, str]

    @classmethod
    def load(cls) -> LoadedTopologies:
        """Load every module of `include/topologies`. Each application id has one plan."""
        loaded = load_all()
        plans = {name: built.plan() for name, built in loaded.items() if not isinstance(built, Exception)}
        errors = {name: error for name, error in loaded.items() if isinstance(error, Exception)}
        copies = {name: str(error) for name, error in errors.items() if isinstance(error, ApplicationIdTaken)}
        return cls(plans, {name: str(error) for name, error in errors.items() if name not in copies}, copies)


@dataclass(frozen=True)
class Overview:
    """All applications at one time. `live_fault` and `history_fault` concern all of them; None if all is well.

    `copies` are topology modules whose application has another module, which is the one that is shown.
    """

    now_ms: int
    applications: tuple[Application, ...]
    unloadable: Mapping[str, str]
    copies: Mapping[str, str]
    live_fault: str | None
    history_fault: str | None
    live_is_known: bool

    def application(self, topology: str) -> Application | None:
        """Return the application of a topology."""
        return next((app for app in self.applications if app.topology == topology), None)


@dataclass(frozen=True)
class _Disk:
    stores: tuple[StoreView, ...]
    sizes: SizeHistory
    savepoint: SavepointView


class Sampler:
    """Reads everything in the background. Safe to use from several threads."""

    def __init__(self, settings: Settings, topologies: LoadedTopologies) -> None:
        self._settings = settings
        self._topologies = topologies
        self._by_id = {plan.application_id: plan for plan in topologies.plans.values()}
        self._facts: FactsDatabase | None = None
        self._newest_facts: tuple[int, ...] = ()
        self._histories: dict[str, History] = {}
        self._looks = 0
        self._reader: LiveReader | None = None
        self._sizes = {app: SizeHistoryReader(history_path(settings.var_dir, app)) for app in self._by_id}
        self._files = Watched("files", FILES_EVERY_S, self._read_files)
        self._history = Watched("history", HISTORY_EVERY_S, self._read_history)
        self._live = Watched("live", LIVE_EVERY_S, self._read_live, self._close_live)
        self._disk = Watched("disk", DISK_EVERY_S, self._read_disk)

    def overview(self, wanted: Mapping[str, bool]) -> Overview:
        """Return the present knowledge. `wanted` says by topology whether its DAG is on.

        Blocks for half a second at most, and only the first time.
        """
        until_s = time.monotonic() + _FIRST_S
        self._history.reading()  # Its thread works while this one waits for the files.
        files = self._files.reading(_FIRST_S)
        history = self._history.reading(max(0.0, until_s - time.monotonic()))
        live, disk = self._live.reading(), self._disk.reading()
        now_ms = wall_clock_ms()
        applications = []
        for name, plan in self._topologies.plans.items():
            app = plan.application_id
            known = live.value[app] if live.value is not None else None
            own_files = _of(files, app)
            own_disk = _of(disk, app)
            measured = own_disk.value
            applications.append(
                Application(
                    topology=name,
                    plan=plan if known is None else known.plan,
                    now_ms=now_ms,
                    is_wanted=wanted.get(name),
                    files=own_files.value or ProcessFiles(),
                    are_files_known=own_files.value is not None,
                    files_fault=own_files.fault,
                    history=None if history.value is None else history.value[app],
                    history_fault=history.fault,
                    live=known,
                    live_fault=live.fault or (None if known is None else known.fault),
                    stores=None if measured is None else measured.stores,
                    sizes=None if measured is None else measured.sizes,
                    savepoint=None if measured is None else measured.savepoint,
                    disk_fault=own_disk.fault,
                )
            )
        live_is_known = live.value is not None or live.fault is not None
        return Overview(
            now_ms, tuple(applications), self._topologies.faults, self._topologies.copies,
            live.fault, history.fault, live_is_known,
        )  # fmt: skip

    def _read_each(self, read: Callable[[str], T]) -> dict[str, Reading[T]]:
        """Read every application. A file of one that cannot be read hides nothing of the others."""
        found: dict[str, Reading[T]] = {}
        for app in self._by_id:
            try:
                found[app] = Reading(read(app))
            except (OSError, TidemarkError) as error:
                found[app] = Reading(fault=str(error))
        return found

    def _read_files(self) -> dict[str, Reading[ProcessFiles]]:
        now_ms = wall_clock_ms()
        return self._read_each(lambda app: read_files(self._settings, app, now_ms))

    def _read_history(self) -> dict[str, History]:
        if self._facts is None:
            self._facts = FactsDatabase(self._settings)
        facts = self._facts
        with facts.reading():
            newest = facts.newest(HISTORY_TABLES)
            # A row with a smaller id may be committed after one with a larger id, and old rows are removed.
            if self._looks % _LOOKS_UNTIL_READ == 0:
                changed = set(self._by_id)
            else:
                changed = facts.applications_since(HISTORY_TABLES, self._newest_facts) & self._by_id.keys()
            self._histories = self._histories | {app: read_history(facts, app) for app in changed}
            self._newest_facts = newest
        self._looks += 1
        return self._histories

    def _read_live(self) -> dict[str, LiveView]:
        try:
            if self._reader is None:
                self._reader = LiveReader(self._by_id, self._settings)
            return self._reader.look(wall_clock_ms())
        except Exception:
            # What was known may be of a cluster that is gone: the next look starts again.
            self._close_live()
            raise

    def _close_live(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _read_disk(self) -> dict[str, Reading[_Disk]]:
        return self._read_each(self._disk_of)

    def _disk_of(self, app: str) -> _Disk:
        stores = tuple(read_stores(self._by_id[app], self._settings))
        now_ms = wall_clock_ms()
        sizes = self._sizes[app].read(now_ms).with_present(stores, now_ms)
        return _Disk(stores, sizes, read_savepoint(self._settings, app))


def _of(reading: Reading[dict[str, Reading[T]]], app: str) -> Reading[T]:
    """Return what is known of one application."""
    return Reading(fault=reading.fault) if reading.value is None else reading.value[app]

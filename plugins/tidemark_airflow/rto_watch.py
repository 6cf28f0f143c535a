"""The deadline `rto_s`: raises one alert when an instance has made no progress for longer than that.

The beginning of a standstill is stored in a file, so that the time is counted across relaunches, back-offs, holds and
restarts of Airflow's components. Airflow's own deadlines count from the beginning of a run, and a stream has only one run
(docs/decisions/0012).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from tidemark.alerts import Alert, AlertKind, raise_alert
from tidemark.checks.liveness import CHECK, Input, Look, ended, follow, forgotten, judged
from tidemark.clock import wall_clock_ms
from tidemark.names import TopicPartition
from tidemark.settings import Settings
from tidemark.supervision.hold import describe_hold, read_hold
from tidemark.supervision.instance_files import InstanceFiles, read_json, write_json
from tidemark.supervision.liveness import observe
from tidemark.supervision.outage_file import read_outage
from tidemark.supervision.run_file import RunView
from tidemark.supervision.standstill_file import Standstill
from tidemark.supervision.state import InstanceState
from tidemark.supervision.stop import is_paused
from tidemark.verdict import Finding, Verdict
from tidemark_airflow.threads import own_thread

log = logging.getLogger(__name__)

_LOOK_S = 2.0
# The broker is asked only if an instance runs and reports that it commits nothing.
_ASK_EVERY_MS = 10_000
# A run file is rewritten every second, between batches; the rate in an older one is out of date.
_FRESH_MS = 30_000


class RtoWatch:
    """Watches the progress of one instance. Every method blocks; only one thread may call `look` at a time."""

    def __init__(self, files: InstanceFiles, ask: Callable[[RunView, Settings], Input] | None = None) -> None:
        """`ask` returns the input that waits in the sources of the instance; tests replace it."""
        self._files = files
        self._settings = Settings.load()
        self._ask = ask or input_of
        self._asked_ms = 0
        self._unwritten: Standstill | None = None
        self._writing = threading.Lock()
        self._has_ended = False

    def end(self) -> None:
        """Let a look that is still waiting for a broker bring back no standstill that is forgotten meanwhile."""
        with self._writing:
            self._has_ended = True

    def look(self, now_ms: int) -> None:
        """Check once; `now_ms` is in epoch milliseconds. Never raises: a failure here is no reason to end a stream.

        A standby commits nothing, so it has no deadline.
        """
        if self._settings.rto_s <= 0 or self._files.key.is_standby:
            return
        try:
            self._look(now_ms)
        except Exception:
            log.exception("instance %s: failed to check whether it makes progress", self._files.key)

    def _look(self, now_ms: int) -> None:
        if is_paused(self._files, observe(self._files).launch_id, now_ms):
            # A trigger goes on to wait for brokers or for a release while its DAG is paused.
            self._unwritten = None
            forget_standstill(self._files)
            return
        known = self._unwritten or Standstill.of(read_json(self._files.standstill))
        seen = follow(known, self._seen(now_ms))
        if self._has_ended:
            return
        name, rto_s = str(self._files.key), self._settings.rto_s
        if known is not None and known.is_told and (seen is None or not seen.is_told):
            finding = ended(name, known, now_ms, rto_s)
            log.warning("instance %s: %s", name, finding.message)
            self._keep(finding, now_ms, over=True)
        finding = judged(name, seen, now_ms, rto_s)
        is_missed = seen is not None and finding.verdict is Verdict.FAILED and not seen.is_told
        if seen is not None and is_missed:
            self._tell(finding, now_ms)
            seen = replace(seen, is_told=True)
        if seen is None or seen != known or self._unwritten is not None:
            self._write(known, seen)
        if is_missed:
            self._keep(finding, now_ms, over=False)

    def _write(self, known: Standstill | None, seen: Standstill | None) -> None:
        with self._writing:
            # Another watcher reads that the alert was raised, unless the standstill was forgotten or written again meanwhile.
            if self._has_ended and (known is None or Standstill.of(read_json(self._files.standstill)) != known):
                return
            try:
                if seen is None:
                    self._files.standstill.unlink(missing_ok=True)
                else:
                    write_json(self._files.standstill, seen.to_dict())
            except OSError as error:
                # A full disk is a cause of standstills: the time is counted here until there is room.
                if self._unwritten is None:
                    log.warning(
                        "instance %s: failed to write since when it makes no progress: %s", self._files.key, error
                    )
                self._unwritten = seen
            else:
                self._unwritten = None

    def _tell(self, finding: Finding, now_ms: int) -> None:
        message, application_id = f"{self._files.key} {finding.message}", self._files.key.application_id
        raise_alert(self._settings, Alert.of(AlertKind.RTO_MISSED, application_id, message, now_ms))

    def _seen(self, now_ms: int) -> Look:
        run = observe(self._files).run
        if run is None or run.state != InstanceState.RUNNING:
            var_dir, app = self._files.var_dir, self._files.key.application_id
            hold = read_hold(var_dir, app)
            stopped = self._why_none_runs() if run is None else f"it is {run.state}"
            return Look(now_ms, stopped if hold is None else describe_hold(var_dir, app, hold))
        # If the clock was set back, the age is negative, and says nothing.
        is_fresh = abs(now_ms - run.written_at * 1000) < _FRESH_MS
        if is_fresh and float(run.values.get("records_per_second") or 0) > 0:
            return Look(now_ms, None, commits=True)
        if 0 <= now_ms - self._asked_ms < _ASK_EVERY_MS:
            return Look(now_ms, None)
        self._asked_ms = now_ms
        try:
            outage = read_outage(self._files.outage)
            waits_for = "" if outage is None else outage.why
            return Look(now_ms, None, input=self._ask(run, self._settings), waits_for=waits_for)
        except Exception as error:  # noqa: BLE001 - whatever a broker raises
            log.info("instance %s: failed to find out whether input waits: %s", self._files.key, error)
            return Look(now_ms, None)

    def _why_none_runs(self) -> str:
        outage = read_outage(self._files.outage)
        return "no process of it runs" if outage is None else f"no process of it runs: {outage.why}"

    def _keep(self, finding: Finding, now_ms: int, *, over: bool) -> None:
        """Write the finding to the history of verdicts and to the instance's events, in the database of facts."""
        from tidemark.checks.verdict_table import write_verdicts
        from tidemark.database import FactsDatabase
        from tidemark.errors import FactsUnavailable
        from tidemark.events.event import Event, EventKind
        from tidemark.events.table import write_event

        key = self._files.key
        run = RunView.read(self._files.run)
        version = str(run.values.get("topology_version", "")) if run else ""
        kind = EventKind.STANDSTILL_END if over else EventKind.STANDSTILL
        facts = FactsDatabase(self._settings)
        try:
            write_verdicts(facts, key.application_id, CHECK, now_ms, [finding])
            write_event(facts, Event(kind, key.application_id, version, key.instance, now_ms, finding.evidence))
        except FactsUnavailable as error:
            log.warning("%s; this finding is only in the log", error)
        finally:
            facts.close()


def forget_standstill(files: InstanceFiles) -> None:
    """Stop counting a standstill, because the instance was stopped on purpose or is being started for the first time.

    The verdict on a standstill that was reported would otherwise stay *failed* for ever. Blocks.
    """
    from tidemark.checks.verdict_table import keep_verdicts

    known = Standstill.of(read_json(files.standstill))
    files.standstill.unlink(missing_ok=True)
    if known is None or not known.is_told:
        return
    settings = Settings.load()
    finding = forgotten(str(files.key), known, wall_clock_ms(), settings.rto_s)
    log.info("instance %s: %s", files.key, finding.message)
    if away := keep_verdicts(settings, files.key.application_id, CHECK, [finding]):
        log.warning("%s; this finding is only in the log", away)


def input_of(run: RunView, settings: Settings) -> Input:
    """Return the input that waits in the sources of an instance's tasks, which its run file names. Blocks.

    The topology module says nothing of them: after an upgrade it is not the version that runs, and this process may have
    imported an older one. Raises whatever the broker raises, and `KeyError` if the run file does not name the sources.
    """
    from tidemark.checks.liveness_sampling import waiting_input

    leads = [TopicPartition.parse(place) for place in run.values.get("partitions", ())]
    return waiting_input(str(run.values["application_id"]), run.values["sources"], settings, leads)


@contextlib.asynccontextmanager
async def rto_watched(files: InstanceFiles, is_ours: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
    """Check every two seconds while the block runs, in a separate thread.

    `is_ours` returns False once another watcher does this.
    """
    watch = await asyncio.to_thread(RtoWatch, files)

    def look() -> None:
        if is_ours():
            watch.look(wall_clock_ms())

    async def keep_looking() -> None:
        with own_thread(f"rto of {files.key}") as in_thread:
            while True:
                await in_thread(look)
                await asyncio.sleep(_LOOK_S)

    looking = asyncio.create_task(keep_looking())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.to_thread(watch.end)

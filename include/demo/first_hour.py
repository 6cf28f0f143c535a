"""The steps of the demo: the streams first, then what Airflow does for them, at a pace that a small machine bears.

Each step can be run again: what runs is left running, and what has run once is not run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from demo.capacity import FIRST, Capacity
from demo.steps import Report, Step
from tidemark.devstack.airflow import AirflowRefused
from tidemark.errors import TidemarkError
from tidemark.processes import wait_until
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.supervision.local_instances import LocalInstance
from tidemark.supervision.state import InstanceState

AUDIT = "exactly_once_audit"
OPERATIONS = {
    "savepoint": "it copies the state of every stream, from which the drill restores, too",
    "lag_check": "it judges the lag of every stream; every 5 minutes from now on",
    "durability_check": "it says what the loss of this one broker would cost; every hour from now on",
    "retention_check": "it measures every store, whose sizes the Streams page draws; every 6 hours from now on",
    "compaction_check": "it judges how well changelogs are compacted; every 6 hours from now on",
    "restore_drill": "it rebuilds the state of every stream elsewhere and compares every key; every Sunday from now on",
    "drill_age_check": "it looks for a drill that is too old; every day from now on",
    AUDIT: "Spark computes the results of every stream again and compares them",
}
"""The scheduled DAGs that the demo turns on, one after another, with what each run does.

Airflow runs a scheduled DAG at once when it is unpaused, so all at once would be eight runs beside three streams.
"""
STREAM_TIMEOUT_S = 300.0
_RUN_BEGINS_S, _RUN_TIMEOUT_S = 20.0, 1800.0
_SILENCE_TIMEOUT_S = 60.0
_STATES: dict[str, str] = {
    InstanceState.CREATED: "Spark starts, which takes longest",
    InstanceState.REBALANCING: "it joins its consumer group",
    InstanceState.RESTORING: "it rebuilds its state",
    InstanceState.RUNNING: "it runs, and has not committed a batch yet",
}
_LIVE, _ENDED = frozenset({"queued", "running"}), frozenset({"success", "failed"})
T = TypeVar("T")


class Dags(Protocol):
    """The part of Airflow's API that the steps need."""

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until the DAG has been parsed."""

    def unpause(self, dag_id: str) -> None:
        """Unpause the DAG."""

    def pause(self, dag_id: str) -> None:
        """Pause the DAG."""

    def trigger(self, dag_id: str) -> str:
        """Start a run."""

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, the newest first."""


@dataclass(frozen=True)
class Pace:
    """Time limits in seconds: for the beginning of a run, a stream's first commit and a run; and the time between two looks."""

    run_begins_s: float = _RUN_BEGINS_S
    stream_s: float = STREAM_TIMEOUT_S
    run_s: float = _RUN_TIMEOUT_S
    every_s: float = 0.5


class FirstHour:
    """Makes the steps. `instances` returns those of a topology, `start_services` starts heartbeats and the other events."""

    def __init__(
        self,
        dags: Dags,
        able: Capacity,
        instances: Callable[[str], list[LocalInstance]],
        start_services: Callable[[], None],
        began_ms: int,
        pace: Pace | None = None,
    ) -> None:
        self._dags = dags
        self._able = able
        self._instances = instances
        self._start_services = start_services
        self._began_ms = began_ms
        self._pace = pace or Pace()

    def steps(self) -> list[Step]:
        """Return the steps in their order."""
        streams = [Step(f"stream {name}", partial(self._stream, name)) for name in self._able.streams]
        operations = [Step(dag_id, partial(self._operation, dag_id, why)) for dag_id, why in OPERATIONS.items()]
        return [*streams, *operations]

    def _stream(self, topology: str, report: Report) -> str:
        """Launch a stream, and wait until it has committed records.

        The next stream would take the processors that the first batch needs to compile its code.
        """
        dag_id = f"stream__{topology}"
        report("Airflow reads its DAG")
        _patiently(lambda: self._dags.wait_for_dag(dag_id))
        report("Airflow starts the run of its DAG")
        self._unpause(dag_id)
        if topology == FIRST:
            # The instance takes longest to start, so it is launched before there is something to count.
            self._start_services()

        def has_committed() -> bool:
            found = self._instances(topology)
            report(why_waiting(found))
            return any(_has_committed_records(one, self._began_ms) for one in found)

        if not wait_until(has_committed, self._pace.stream_s, self._pace.every_s):
            raise TidemarkError(
                f"no batch was committed in {self._pace.stream_s:.0f} s: look at `tidemark status` and at the log of the task "
                f"`instance` of {dag_id}"
            )
        return "commits its batches"

    def _operation(self, dag_id: str, why: str, report: Report) -> str:
        """Turn a scheduled DAG on, and wait until its first run has ended."""
        report(why)
        _patiently(lambda: self._dags.wait_for_dag(dag_id))
        has_run_before = bool(self._ended(dag_id))
        if not has_run_before:
            self._unpause(dag_id)
        has_ended = wait_until(lambda: bool(self._ended(dag_id)), self._pace.run_s, self._pace.every_s)
        if dag_id == AUDIT and not self._able.keeps_audit:
            # Also if it ran before: the demo that watched that run may have been stopped before it could pause the DAG.
            _patiently(lambda: self._dags.pause(dag_id))
        if not has_ended:
            minutes = self._pace.run_s / 60
            raise TidemarkError(f"its run has not ended in {minutes:.0f} min: look at its tasks in Airflow")
        if self._ended(dag_id)[0] == "failed":
            raise TidemarkError("its run failed: the log of its task says what was found and what to do")
        return "it has run before" if has_run_before else "its run succeeded"

    def _states(self, dag_id: str) -> list[str]:
        return [str(run["state"]) for run in _patiently(lambda: self._dags.runs(dag_id))]

    def _ended(self, dag_id: str) -> list[str]:
        """Return the states of the runs that have ended, the newest first."""
        return [state for state in self._states(dag_id) if state in _ENDED]

    def _unpause(self, dag_id: str) -> None:
        """Unpause a DAG, which starts a run by itself; trigger a run only if that did not happen."""
        ended = len(self._ended(dag_id))

        def has_run() -> bool:
            states = self._states(dag_id)
            # A short run may have ended before it was seen.
            return bool(_LIVE.intersection(states)) or sum(state in _ENDED for state in states) > ended

        _patiently(lambda: self._dags.unpause(dag_id))
        if not wait_until(has_run, self._pace.run_begins_s, self._pace.every_s):
            _patiently(lambda: self._dags.trigger(dag_id))


def _has_committed_records(one: LocalInstance, since_ms: int) -> bool:
    """Return whether an instance has committed records since then.

    Its very first commit has no records and no stream time: it says only where its tasks begin to read.
    """
    is_running = one.is_alive and one.state == InstanceState.RUNNING
    has_time = one.stream_time_ms is not None and one.stream_time_ms != NO_STREAM_TIME
    return is_running and has_time and (one.last_commit_ms or 0) >= since_ms


def why_waiting(instances: list[LocalInstance]) -> str:
    """Return what a stream that was launched waits for."""
    outage = next((one.outage for one in instances if one.outage is not None), None)
    if outage is not None:
        return f"it waits for brokers: {outage.why}"
    state = next((one.state for one in instances if one.is_alive), None)
    if state is None:
        return "its instance ended, and Airflow launches it again" if instances else "Airflow launches its instance"
    return _STATES.get(state, f"it is {state}")


def _patiently(call: Callable[[], T]) -> T:
    """Call until Airflow answers, as all services start at once here, and a small machine is slow meanwhile."""
    answers: list[T] = []

    def has_answered() -> bool:
        try:
            answers.append(call())
        except AirflowRefused as refused:
            if refused.status != 0:
                raise
        return bool(answers)

    return answers[0] if wait_until(has_answered, _SILENCE_TIMEOUT_S, every_s=0.5) else call()

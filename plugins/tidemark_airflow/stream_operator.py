"""The operators that keep one instance, or one standby, running: launch or adopt it, defer to a trigger, relaunch it."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, TaskInstanceState
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError

from tidemark.alerts import AlertKind
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode
from tidemark.processes import Place, wait_until
from tidemark.settings import Settings
from tidemark.supervision import watch_claim
from tidemark.supervision.hold import describe_hold, read_hold
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, LaunchRecord
from tidemark.supervision.instance_log import last_error, read_part
from tidemark.supervision.launch import (
    Command,
    Held,
    Launched,
    LivesElsewhere,
    find_live,
    forget_surplus,
    launch_or_adopt,
)
from tidemark.supervision.liveness import RUN_FILE_FRESH_S, observe
from tidemark.supervision.outage_file import read_outage
from tidemark.supervision.restart_policy import Adopt, AwaitBrokers, GiveUp, Relaunch, RestartBudget, decide, explain
from tidemark.supervision.stop import ask_to_stop, was_paused
from tidemark_airflow.alerting import Alarm
from tidemark_airflow.command import spark_command, standby_command
from tidemark_airflow.rto_watch import RtoWatch, forget_standstill
from tidemark_airflow.stream_trigger import (
    BackoffTrigger,
    BrokerTrigger,
    ElsewhereTrigger,
    HoldTrigger,
    InstanceExited,
    StreamTrigger,
)
from tidemark_airflow.whereabouts import where_is_it

_LAUNCH = "launch"
_RESTARTS = "restarts"
_SHORT_RUNS = "short_runs"
_GAVE_UP = "gave_up"
_SHOWS_ITSELF_S = 5.0
# A relaunched copy joins the consumer group within this time, Spark's start included.
_JOINS_S = 20.0
# A copy whose container is being replaced stops within this time, its last savepoint included, and its run file is then too
# old to say that it runs.
_ENDS_ELSEWHERE_S = 3 * RUN_FILE_FRESH_S
_ENDED_STATES = frozenset({TaskInstanceState.FAILED, TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED})


class LaunchCancelled(Exception):
    """The task was told to end while it launched or adopted its instance. What it had launched is asked to stop."""


class StreamOperator(BaseOperator):
    """Keeps instance number `instance` of a topology running until a user ends the task.

    It occupies a worker slot only while it launches. The task never succeeds by itself: an instance that ends is relaunched
    within the budget of the DAG's params (`max_restarts`, …), or the task fails with a message that says what to do.
    `script` replaces the instance's program in tests.
    """

    template_fields: Sequence[str] = ("topology", "application_id", "instance")
    ui_color = "#d7eef4"
    build_command: Callable[..., Command] = staticmethod(spark_command)
    is_standby = False

    def __init__(
        self,
        *,
        topology: str,
        application_id: str,
        instance: int = 0,
        conn_id: str = "spark_default",
        script: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.application_id = application_id
        self.instance = instance
        self.conn_id = conn_id
        self.script = script
        self._watched: tuple[InstanceFiles, str] | None = None
        self._must_end = False

    def execute(self, context: Mapping[str, Any]) -> NoReturn:
        """Launch or adopt the instance, then defer to the trigger."""
        ti = context.get("ti")
        if ti is None or ti.try_number <= 1:
            forget_standstill(self._files(Settings.load()))
        self._renew_budget(context["task_state_store"])
        self._watch(context)

    def _forget_surplus(self, context: Mapping[str, Any], settings: Settings) -> None:
        """Forget the ended instances that an earlier run had on this machine and that the present run does not have.

        Some of them may still commit their last batch when the run begins.
        """
        instances = (context.get("params") or {}).get("instances")
        if instances is not None and not self.is_standby:
            for files in forget_surplus(settings.var_dir, self.application_id, int(instances)):
                forget_standstill(files)

    def _renew_budget(self, store: Any) -> None:
        """Give the whole restart budget to a task that gave up and was cleared. A retry keeps what is left of it."""
        if store.get(_GAVE_UP):
            # The mark goes last: a worker that is killed in between renews the budget once more.
            store.set(_RESTARTS, [])
            store.set(_SHORT_RUNS, 0)
            store.set(_GAVE_UP, False)

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> NoReturn:
        """React to the end of the instance: relaunch it, adopt another copy, wait, or fail."""
        settings = Settings.load()
        files = self._files(settings)
        exit_code = InstanceExited.from_payload(event).exit_code
        if exit_code is None:
            self._require_ended(context, files)
        lines = self._log_of_last_launch(files)
        self._copy_to_task_log(files, lines)
        hold = read_hold(files.var_dir, self.application_id)
        self._forget_pause(files)
        if exit_code == ExitCode.OK and hold is None:
            # It was stopped on purpose and is started again now.
            forget_standstill(files)
        if hold is not None:
            # The operation that holds the application has stopped it, so this does not use up the restart budget.
            self._wait_for_release(files, describe_hold(files.var_dir, self.application_id, hold))
        if exit_code is None and _ended_with_its_machine(files, self._budget(context).settled_s):
            name = f"{files.key.kind} {files.key}"
            self.log.info("%s ended with its machine or container, which does not count as a relaunch", name)
            self._watch(context)
        self._react(context, files, exit_code, lines)

    def _forget_pause(self, files: InstanceFiles) -> None:
        """Stop counting the time in which the DAG was paused. What follows, a hold too, counts again."""
        seen = observe(files)
        if not seen.liveness.is_alive_here and was_paused(files, seen.launch_id):
            forget_standstill(files)
            files.pause.unlink(missing_ok=True)

    def _require_ended(self, context: Mapping[str, Any], files: InstanceFiles) -> None:
        """Fail if the launch whose end was reported is alive: the trigger runs on a machine where it cannot be seen."""
        seen = observe(files)
        remembered = LaunchRecord.from_json(context["task_state_store"].get(_LAUNCH))
        if remembered is None or not seen.liveness.is_alive_here or seen.launch_id != remembered.launch_id:
            return
        raise AirflowFailException(
            f"{files.key.kind} {files.key} runs on {seen.host}, but the triggerer that watches it does not see it. Let a "
            f"triggerer on {seen.host}, and no other one, serve the queue {self.queue} (`airflow triggerer --queues`, with "
            f"queues_enabled in [triggerer]), then clear this task, which adopts it"
        )

    def _react(
        self, context: Mapping[str, Any], files: InstanceFiles, exit_code: int | None, lines: list[str]
    ) -> NoReturn:
        store = context["task_state_store"]
        budget = self._budget(context)
        outage = read_outage(files.outage)
        key = files.key
        short_runs = store.get(_SHORT_RUNS) or 0
        decision = decide(exit_code, store.get(_RESTARTS) or (), time.time(), budget, outage, key.kind, short_runs)
        self.log.info("%s %s %s (exit code %s): %s", key.kind, key, explain(exit_code), exit_code, decision)
        if isinstance(decision, Adopt):
            self._adopt_only(context, files)
        if isinstance(decision, GiveUp):
            # Airflow keeps the store when the task is cleared.
            store.set(_GAVE_UP, True)
            said = last_error(lines)
            reason = f"{decision.reason}. Its last message: {said}" if said else decision.reason
            raise Alarm(self._alert_of(decision), self.application_id, reason)
        if isinstance(decision, AwaitBrokers):
            self._await_brokers(files, decision)
        if not isinstance(decision, Relaunch):
            raise TypeError(f"unknown decision: {decision}")
        store.set(_RESTARTS, list(decision.restarts))
        store.set(_SHORT_RUNS, decision.short_runs)
        self.log.info(
            "relaunch %s of at most %s within %.0f s", len(decision.restarts), budget.max_restarts, budget.window_s
        )
        if decision.after_s > 0:
            until = time.time() + decision.after_s
            self.log.info("waiting until %s", datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds"))
            trigger = BackoffTrigger.of(files, until=until)
            self.defer(trigger=trigger, method_name="relaunch")
        self._watch(context)

    def _alert_of(self, decision: GiveUp) -> AlertKind:
        return AlertKind.STANDBY_FAILED if self.is_standby else decision.what

    def _await_brokers(self, files: InstanceFiles, decision: AwaitBrokers) -> NoReturn:
        self.log.warning("waiting for brokers, which does not count as a relaunch: %s", decision.outage.why)
        until = time.time() + decision.at_most_s
        trigger = BrokerTrigger.of(files, until=until)
        self.defer(trigger=trigger, method_name="relaunch")

    def relaunch(self, context: Mapping[str, Any], event: Mapping[str, Any] | None = None) -> NoReturn:
        """Launch or adopt the instance after a backoff, a hold or an outage."""
        self._watch(context)

    def on_kill(self) -> None:
        """Stop an instance that was launched but not handed to a trigger yet, because the worker has to end.

        Airflow calls this once, possibly in the middle of a launch: the launch then ends before it starts the instance, or
        stops it as soon as its record is written.
        """
        self._must_end = True
        self._stop_watched()

    def _stop_watched(self) -> None:
        if self._watched is None:
            return
        files, me = self._watched
        seen = observe(files)
        if watch_claim.is_held_by(files, me) and seen.liveness.is_alive_here:
            self.log.info("stopping %s %s", files.key.kind, files.key)
            ask_to_stop(seen)

    def _watch(self, context: Mapping[str, Any]) -> NoReturn:
        settings = Settings.load()
        files = self._files(settings)
        store = context["task_state_store"]
        self._forget_surplus(context, settings)
        # The DAG may have been paused while the task waited for a backoff, for brokers, for a hold or for its retry.
        self._forget_pause(files)
        # No trigger has counted a standstill while the task waited for its retry.
        RtoWatch(files).look(wall_clock_ms())
        script = Path(self.script) if self.script else None
        command = self.build_command(settings, self.topology, files, self.conn_id, script)
        remembered = LaunchRecord.from_json(store.get(_LAUNCH))
        try:
            launched = launch_or_adopt(files, command, remembered, lambda: self._claim(files))
        except Held as held:
            self._wait_for_release(files, str(held))
        except LivesElsewhere as elsewhere:
            self._wait_for_end(files, str(elsewhere), time.time() + _ENDS_ELSEWHERE_S)
        self._hand_over(context, files, launched)

    def _claim(self, files: InstanceFiles) -> None:
        """Record this task as the one that watches the instance until its trigger does."""
        if self._must_end:
            raise LaunchCancelled(f"the task was told to end, so {files.key.kind} {files.key} is not launched")
        me = uuid.uuid4().hex
        self._watched = (files, me)
        watch_claim.take(files, me)

    def _wait_for_release(self, files: InstanceFiles, why: str) -> NoReturn:
        self._watched = None
        self.log.info("%s %s is not launched yet: %s", files.key.kind, files.key, why)
        trigger = HoldTrigger.of(files)
        self.defer(trigger=trigger, method_name="relaunch")

    def _wait_for_end(self, files: InstanceFiles, why: str, until: float) -> NoReturn:
        """Wait without a worker slot until the copy on another machine, which may be a container that was replaced, ends."""
        self._watched = None
        self.log.info("%s %s is not launched yet: %s", files.key.kind, files.key, why)
        trigger = ElsewhereTrigger.of(files, until=until)
        self.defer(trigger=trigger, method_name="after_elsewhere", kwargs={"until": until})

    def after_elsewhere(
        self, context: Mapping[str, Any], event: Mapping[str, Any] | None = None, *, until: float
    ) -> NoReturn:
        """Launch the instance if it no longer runs on another machine. Fails if it still does at `until` (epoch seconds)."""
        files = self._files(Settings.load())
        try:
            find_live(files)
        except LivesElsewhere as elsewhere:
            # The triggerer may see the instance from another machine than this worker. More time than the whole wait is left
            # only if the clock was set back.
            if 0 < until - time.time() <= _ENDS_ELSEWHERE_S:
                self._wait_for_end(files, str(elsewhere), until)
            raise AirflowFailException(f"{elsewhere}; then clear this task") from elsewhere
        self._watch(context)

    def _adopt_only(self, context: Mapping[str, Any], files: InstanceFiles) -> NoReturn:
        """Watch the copy that fenced this one if it runs on this machine; else look for it in the group later."""
        # The run file may still be that of the copy that ended; the live copy rewrites it within a second.
        wait_until(lambda: find_live(files) is not None, _SHOWS_ITSELF_S)
        self._watch_other(context, files)
        self._look_later(files)

    def _look_later(self, files: InstanceFiles) -> NoReturn:
        # By then the group session of a dead copy has timed out. The random part keeps two operators whose copies fenced
        # each other from checking at the same time: the later one finds what the other has launched.
        after_s = Settings.load().session_timeout_ms / 1000 + random.uniform(_JOINS_S, 2 * _JOINS_S)
        self.log.info("in %.0f s the group is checked for the other copy of %s %s", after_s, files.key.kind, files.key)
        trigger = BackoffTrigger.of(files, until=time.time() + after_s)
        self.defer(trigger=trigger, method_name="after_fence")

    def after_fence(self, context: Mapping[str, Any], event: Mapping[str, Any] | None = None) -> NoReturn:
        """Check the group for the other copy. Fails if the copy is a member; launches this copy again if it is not."""
        settings = Settings.load()
        files = self._files(settings)
        self._watch_other(context, files)
        found = where_is_it(settings, files)
        if found.is_member is None:
            self.log.warning("failed to look for the copy that fenced %s %s: %s", files.key.kind, files.key, found.said)
            self._look_later(files)
        if found.is_member:
            raise AirflowFailException(
                f"{files.key.kind} {files.key} was fenced by another copy, which does not run here: {found.said}. Stop "
                "that copy, then clear this task"
            )
        self.log.warning("the copy that fenced %s %s is gone: %s", files.key.kind, files.key, found.said)
        self._react(context, files, None, [])

    def _watch_other(self, context: Mapping[str, Any], files: InstanceFiles) -> None:
        """Defer to a trigger that watches the live copy on this machine. Returns if there is none."""
        seen = find_live(files)
        if seen is None:
            return
        self._claim(files)
        self._hand_over(context, files, Launched(seen, adopted=True))

    def _hand_over(self, context: Mapping[str, Any], files: InstanceFiles, launched: Launched) -> NoReturn:
        seen = launched.seen
        pid = seen.launch.pid if seen.launch else seen.run.process.pid if seen.run else None
        did = "adopted" if launched.adopted else "launched"
        self.log.info("%s %s %s, pid %s", did, files.key.kind, files.key, pid)
        self.log.info("its log is %s", files.log)
        if self._must_end or self._was_ended(context):
            self._cancel(files)
        try:
            if seen.launch:
                context["task_state_store"].set(_LAUNCH, seen.launch.as_json())
        except AirflowRuntimeError:
            # Airflow stores nothing for a task whose run was deleted.
            if self._was_ended(context):
                self._cancel(files)
            raise
        self.defer(
            trigger=StreamTrigger.of(files, launch_id=seen.launch_id),
            method_name="resume",
        )

    def _cancel(self, files: InstanceFiles) -> NoReturn:
        """Stop the instance that was just launched or adopted, and end the task: no trigger will watch it."""
        self._stop_watched()
        raise LaunchCancelled(f"the task was told to end, so {files.key.kind} {files.key} is asked to stop")

    def _was_ended(self, context: Mapping[str, Any]) -> bool:
        """Return whether a user has ended this task, or has deleted its run.

        Airflow then refuses to defer it, so no trigger would ever watch the instance.
        """
        ti = context.get("ti")
        if ti is None:
            return False
        try:
            states = ti.get_task_states(
                dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
            )
        except AirflowRuntimeError as error:
            self.log.info("failed to read the state of this task, so its instance is not stopped: %s", error)
            return False
        found = states.get(ti.run_id)
        return not found or any(state in _ENDED_STATES for state in found.values())

    def _files(self, settings: Settings) -> InstanceFiles:
        return InstanceFiles(settings.var_dir, InstanceKey(self.application_id, int(self.instance), self.is_standby))

    def _budget(self, context: Mapping[str, Any]) -> RestartBudget:
        params = context.get("params") or {}
        usual = RestartBudget()
        return RestartBudget(
            max_restarts=int(params.get("max_restarts", usual.max_restarts)),
            window_s=float(params.get("restart_window_s", usual.window_s)),
            backoff_max_s=float(params.get("backoff_max_s", usual.backoff_max_s)),
        )

    def _log_of_last_launch(self, files: InstanceFiles) -> list[str]:
        launch = observe(files).launch
        return read_part(files.log, launch.log_start_bytes) if launch else []

    def _copy_to_task_log(self, files: InstanceFiles, lines: list[str]) -> None:
        for line in lines:
            self.log.info("%s | %s", files.key, line)


def _ended_with_its_machine(files: InstanceFiles, settled_s: float) -> bool:
    """Return whether the last launch was on another machine, in a container that was replaced, or before a boot.

    One that did not last for `settled_s` may itself be the reason why its machine or container ended, so it does not count.
    """
    launch = observe(files).launch
    if launch is None or launch.place.shares_processes_with(Place.here()):
        return False
    try:
        # The run file is rewritten every second until the end.
        return files.run.stat().st_mtime - launch.launched_at >= settled_s
    except FileNotFoundError:
        return False


class StandbyOperator(StreamOperator):
    """Keeps standby number `instance` of a topology running, as `StreamOperator` does an instance.

    It runs what `tidemark standby run` runs. A standby commits nothing: it takes no savepoint, has no deadline, and its end
    raises an alert of its own kind.
    """

    ui_color = "#e8eef0"
    build_command: Callable[..., Command] = staticmethod(
        lambda settings, topology, files, *_: standby_command(settings, topology, files)
    )
    is_standby = True

"""Scenarios of `make oncall` other than restores: Airflow's parts killed while the stream runs, a stop, topic settings."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil
from confluent_kafka.admin import AdminClient
from tests.support.alert_notes import noted
from tests.system.oncall.scene import STREAM, Scene, expect, refused

from tidemark import processes
from tidemark.alerts import AlertKind
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.events.event import EventKind
from tidemark.events.table import EventReader
from tidemark.kafka.clients import librdkafka_config
from tidemark.names import commits_topic
from tidemark.operations.topic_changes import TopicChange, apply_changes, plan_changes
from tidemark.processes import wait_until
from tidemark.savepoints.repository import SavepointRepository
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey, read_json

COMPACTION = "compaction_check"
BACK_S = 90
_PARTS = ("scheduler", "triggerer", "dag-processor", "api-server")
_SETTING = "min.compaction.lag.ms"
_WORKER = "airflow worker -- LocalExecutor: "


def airflow_is_killed_while_the_stream_runs(scene: Scene) -> None:
    """Each part alone: the stream goes on. The worker that launches, or a part with the instance: it comes back in time."""
    with scene.bench.feeder.feeding(), scene.never_two():
        for part in _PARTS:
            pid = _one(scene)
            scene.airflow.kill(part)
            scene.commits_on()
            scene.airflow.start(part)
            scene.commits_on()
            expect(_one(scene) == pid, f"another instance runs after the {part} was killed")
        for part in ("scheduler", "triggerer"):
            # Nobody is left who would see it end, or launch it.
            _comes_back(scene, f"{part} and instance", lambda part=part: scene.airflow.kill(part))
        _comes_back(scene, "instance, and the worker that launched it", lambda: None, _kill_launching_worker)
    expect(_one(scene) > 0, "no instance runs")
    scene.require_exact()


def _one(scene: Scene) -> int:
    scene.await_running()
    (pid,) = scene.drivers()
    return pid


def _comes_back(scene: Scene, what: str, before: object, then: object = lambda scene: None) -> None:
    """Kill a part and the instance, start the part again: another instance commits within the time."""
    scene.airflow.await_task(STREAM, "instance", "deferred", timeout_s=90)
    pid = _one(scene)
    started = time.monotonic()
    before()
    psutil.Process(pid).kill()
    for part in _PARTS:
        if not scene.airflow.is_alive(part):
            scene.airflow.start(part)
    then(scene)
    expect(
        wait_until(lambda: scene.drivers() not in ([], [pid]), BACK_S, every_s=0.5), f"{what}: no instance is launched"
    )
    scene.await_running(BACK_S)
    scene.commits_on(BACK_S)
    took_s = time.monotonic() - started
    scene.console.print(f"    {what} killed: commits again after {took_s:.0f} s")
    expect(took_s < BACK_S, f"{what} killed: it took {took_s:.0f} s until something was committed again")


def _kill_launching_worker(scene: Scene) -> None:
    """The worker and the task's process, between the launch and the end of the task that hands over to the watcher."""
    files = InstanceFiles(scene.settings.var_dir, InstanceKey(scene.bench.application_id, 0))
    launched, ours = read_json(files.launch), scene.task_id(STREAM, "instance")
    expect(wait_until(lambda: read_json(files.launch) != launched, BACK_S, every_s=0.02), "nothing is launched")
    killed = 0
    for worker in processes.carrying(os.environ[processes.MARK]):
        with suppress(psutil.Error):
            # One that waits for work holds the queue's lock, and Airflow would never give out work again.
            if " ".join(worker.cmdline()).strip() == f"{_WORKER}{ours}":
                # Not deeper: the instance's supervisor is a child of the task's process.
                for process in [worker, *worker.children()]:
                    process.kill()
                    killed += 1
    expect(killed >= 2, "the worker had ended before it could be killed")


def a_stream_that_stands_still_is_told(scene: Scene) -> None:
    """Frozen with input waiting: an alert, once; and when it is over, an event."""
    known, app, began_ms = len(noted(scene.notes)), scene.bench.application_id, wall_clock_ms()
    with scene.bench.feeder.feeding(), scene.never_two():
        frozen = psutil.Process(_one(scene))
        scene.commits_on()
        frozen.suspend()
        try:
            summary = wait_until(lambda: scene.alerts(AlertKind.RTO_MISSED, known) != [], 150, every_s=0.5)
        finally:
            frozen.resume()
        expect(summary, "nobody was told")
        facts = FactsDatabase(scene.settings)

        def is_over() -> bool:
            return EventKind.STANDSTILL_END in {event.kind for event in EventReader(facts, app, began_ms).new()}

        expect(wait_until(is_over, BACK_S, every_s=1.0), "nobody says that it is over")
        facts.close()
    (message,) = scene.alerts(AlertKind.RTO_MISSED, known)
    expect(message.startswith(f"{app}-0 has made no progress for "), message)
    expect("it runs and commits nothing while" in message, message)
    scene.require_exact()


def a_stop_leaves_a_savepoint(scene: Scene) -> None:
    """A run that somebody marks: the instance ends with a savepoint that stands where Kafka stands."""
    scene.bench.feeder.feed(scene.bench.batch_records)
    scene.bench.wait_drained()
    scene.airflow.await_task(STREAM, "instance", "deferred", timeout_s=90)
    repository = SavepointRepository(scene.settings.savepoint_location, scene.bench.application_id)
    pid, before, stands = _one(scene), set(repository.ids()), scene.bench.committed()
    scene.airflow.api.stop_run(STREAM, scene.airflow.newest_run(STREAM)["dag_run_id"])
    expect(wait_until(lambda: pid not in scene.drivers(), 60, every_s=0.5), "the instance does not end")
    (left,) = (repository.savepoint(one) for one in set(repository.ids()) - before)
    expect(left.is_complete, f"the last savepoint is not whole: {left.fault}")
    for task in left.tasks:
        for store in repository.task(left.savepoint_id, task).stores:
            for topic, offset in store.checkpoint.source_offsets.items():
                place = (topic, int(task.split("_")[1]))
                expect(stands[place] == offset, f"{store.store} of {task} stands at {offset}, Kafka at {stands[place]}")
    # The run that follows launches it again.
    expect(wait_until(lambda: scene.drivers() not in ([], [pid]), BACK_S, every_s=0.5), "it is not launched again")
    scene.require_exact()


def topic_settings_change_only_once_approved(scene: Scene) -> None:
    """`compaction_check` with *apply*: a viewer may not answer, a no changes nothing, a yes sets what was shown."""
    admin, plan = AdminClient(librdkafka_config(scene.settings)), scene.bench.plan
    topic = commits_topic(scene.bench.application_id)
    expect(plan_changes(plan, scene.settings, admin) == [], "the topics are not as their topology asks for")
    apply_changes([TopicChange(topic, _SETTING, "", "1")], scene.settings, admin)
    (proposed,) = plan_changes(plan, scene.settings, admin)
    expect((proposed.topic, proposed.setting, proposed.found) == (topic, _SETTING, "1"), str(proposed))
    for option, left in (("Reject", [proposed]), ("Approve", [])):
        body = {"topologies": ["patient_monitoring"], "apply": True}
        run_id = scene.users["oncall"].trigger(COMPACTION, body)
        shown = scene.asked(run_id, dag_id=COMPACTION)
        line = f"`{topic}`: {_SETTING} from 1 to {proposed.wanted}"
        expect(line in shown["body"], f"the form does not show {line}: {shown['body']}")
        with refused("a viewer answered"):
            scene.answer(run_id, "guest", option, dag_id=COMPACTION)
        expect(plan_changes(plan, scene.settings, admin) == [proposed], "it was changed before somebody answered")
        scene.answer(run_id, "admin", option, dag_id=COMPACTION)
        found = scene.run_ended(run_id, dag_id=COMPACTION)
        expect(found["state"] == "success", f"the run failed: {found['tasks']}")
        expect(found["tasks"]["set_topics"] == ("success" if left == [] else "skipped"), str(found["tasks"]))
        expect(
            plan_changes(plan, scene.settings, admin) == left, f"{option}: {plan_changes(plan, scene.settings, admin)}"
        )

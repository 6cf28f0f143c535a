"""`make oncall`: operations through a real Airflow's REST API, as its users would, of a real stream with input arriving.

    python -m tests.system.oncall.run [--seed N] [--only SCENARIO …]

Each scenario ends with a look at what must and what must not have changed; those that restore or kill, with the exactly-once
comparison. Last line `oncall: scenarios=… ok=… failed=0`; exit 1 when any failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from tests.support.airflow.real_airflow import real_airflow
from tests.support.alert_notes import NOTE, NOTES_FILE
from tests.support.jvms import BRIEF
from tests.support.log_ends import ends_of_logs
from tests.system.crash.bench import ROOT
from tests.system.oncall.changing import a_change_is_done_only_once_approved, a_marked_approval_is_no_answer
from tests.system.oncall.clearing import (
    OTHERS,
    cleared_changes_do_nothing_twice,
    cleared_checks_change_nothing,
    cleared_restores_do_nothing_twice,
    cleared_topic_settings_are_not_set_twice,
)
from tests.system.oncall.deployed import Clicks
from tests.system.oncall.deploying import a_topology_deployed_meanwhile_is_refused
from tests.system.oncall.operating import (
    a_stop_leaves_a_savepoint,
    a_stream_that_stands_still_is_told,
    airflow_is_killed_while_the_stream_runs,
    topic_settings_change_only_once_approved,
)
from tests.system.oncall.probe import ARM_FILE, DEPLOYED, arm
from tests.system.oncall.restoring import (
    a_restored_state_is_kept,
    airflow_is_killed_meanwhile,
    approval_restores,
    dry_run_changes_nothing,
    every_step_is_killed_once,
    failure_rolls_back,
    rejection_changes_nothing,
    silence_means_no,
    viewer_is_refused,
)
from tests.system.oncall.scene import RESET, RESPONSE_S, RESTORE, STREAM, Scene, Ward, Wrong
from tests.system.oncall.versions import CLICKS, deploy

from tidemark import processes
from tidemark.devstack.airflow import AirflowRefused
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.settings import Settings

PARTITIONS = 2
RTO_S = 20

SCENARIOS: dict[str, Callable[[Scene], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        viewer_is_refused, dry_run_changes_nothing, rejection_changes_nothing, silence_means_no, approval_restores,
        every_step_is_killed_once, failure_rolls_back, a_restored_state_is_kept, airflow_is_killed_meanwhile,
        airflow_is_killed_while_the_stream_runs, a_stream_that_stands_still_is_told, a_stop_leaves_a_savepoint,
        topic_settings_change_only_once_approved, a_marked_approval_is_no_answer,
        a_topology_deployed_meanwhile_is_refused, cleared_restores_do_nothing_twice, cleared_checks_change_nothing,
        cleared_topic_settings_are_not_set_twice, cleared_changes_do_nothing_twice, a_change_is_done_only_once_approved,
    )
}  # fmt: skip


def play(scene: Scene, names: list[str]) -> int:
    """Every scenario in turn; how many failed."""
    api, failed = scene.airflow.api, 0
    for dag_id in (STREAM, RESTORE, RESET, *OTHERS):
        api.wait_for_dag(dag_id, 120)
        api.unpause(dag_id)
    scene.await_running(180)
    scene.bench.feeder.feed(scene.bench.batch_records)
    scene.bench.wait_drained()
    for number, name in enumerate(names, 1):
        started = time.monotonic()
        arm(scene.arm_file, {})
        try:
            SCENARIOS[name](scene)
            came = "ok"
        except (Wrong, AirflowRefused, AssertionError, OSError) as error:
            failed += 1
            came = f"FAILED: {error}"
            scene.console.print(traceback.format_exc(), markup=False, soft_wrap=True)
        scene.console.print(
            f"[{number}/{len(names)}] {name}: {came}, {time.monotonic() - started:.0f} s", markup=False, soft_wrap=True
        )
    return failed


def _settings(bootstrap: str, folder: Path) -> Settings:
    return Settings.load(
        bootstrap_servers=bootstrap, var_dir=folder / "var", state_dir=folder / "state",
        savepoint_location=str(folder / "savepoints"), commit_interval_ms=200, max_batch_records=3000,
        session_timeout_ms=6000, transaction_timeout_ms=6000, oncall_approvers=["admin"],
        oncall_response_timeout_ms=RESPONSE_S * 1000, spark_master="local[2]", spark_shuffle_partitions=2,
        alert_callback=NOTE, rto_s=RTO_S,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), help="some scenarios instead of all")
    options = parser.parse_args()
    console, names = Console(highlight=False), options.only or list(SCENARIOS)
    console.print(f"oncall: seed={options.seed}")
    mark = f"oncall-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-oncall-") as name:
        folder = Path(name)
        os.environ |= {
            **BRIEF, processes.MARK: mark, ARM_FILE: str(folder / "arm.json"), NOTES_FILE: str(folder / "alerts"),
            "TIDEMARK_PROBE": "tests.system.oncall.probe:act",
            DEPLOYED: str(folder / "deployed"), "TIDEMARK_TOPOLOGY_PATH": str(folder / "deployed"),
        }  # fmt: skip
        deploy(folder / "deployed", "1")
        jars.ensure("spark", Settings.load())
        with EmbeddedBroker(folder / "broker", jars.ensure("kafka", Settings.load())) as broker:
            bench = Ward(broker.bootstrap, folder, options.seed, PARTITIONS)
            clicks = Clicks(broker.bootstrap, folder, options.seed, folder / "deployed")
            settings = _settings(broker.bootstrap, folder)
            with (
                ends_of_logs(console, settings.var_dir / "log" / "instances", lines=40),
                real_airflow(settings, ROOT / "dags", mark) as airflow,
            ):
                scene = Scene(bench, settings, airflow, console, Scene(clicks, settings, airflow, console))
                failed = play(scene, names)
                for stream in (STREAM, f"stream__{CLICKS}"):
                    airflow.api.pause(stream)
                    if run := airflow.newest_run(stream):
                        airflow.api.stop_run(stream, run["dag_run_id"])
    print(f"oncall: scenarios={len(names)} ok={len(names) - failed} failed={failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

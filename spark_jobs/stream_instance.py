"""Runs one instance of a stream application: `stream_instance.py --topology NAME --instance N`.

Its exit codes are those of `ExitCode`: 0 stopped on request, 10 start again, 20 fenced, 30 refused, 2 wrong arguments, 1 any
other error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "include")]

from spark_jobs.batch_source import SparkBatchSource
from spark_jobs.session import spark_session
from tidemark.atomic_file import as_file_error, keep_files_private
from tidemark.clock import wall_clock_ms
from tidemark.errors import BrokersAway, ExitCode, InstanceFenced, PreflightFailed, TidemarkError
from tidemark.failpoint import probe_from_environment
from tidemark.instance.assembly import make_instance
from tidemark.instance.instance import Instance
from tidemark.instance.source import ColdSource, StartingSource
from tidemark.kafka.availability import find_outage, needed_topics
from tidemark.processes import raise_limit_of_open_files, stop_on_signals
from tidemark.settings import Settings
from tidemark.supervision.instance_log import error_lines
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage
from tidemark.temporary_folder import temporary_folders, use_temporary_folder
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

log = logging.getLogger("tidemark")

_LOOK_S = 0.2


def main(arguments: list[str]) -> ExitCode:
    """Run one instance until SIGTERM or an error, and return the exit code."""
    keep_files_private()
    raise_limit_of_open_files()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", required=True, help="module in include/topologies")
    parser.add_argument("--instance", type=int, default=0, help="0 … n-1, the same after a relaunch")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s %(name)s [{options.topology}-{options.instance}] %(message)s",
    )
    for chatty in ("py4j", "httpx", "httpx2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    stop = threading.Event()
    stop_on_signals(stop)
    try:
        return _run(options.topology, options.instance, stop)
    except TidemarkError as error:
        # The log is a file on a disk that may be full; the exit code must be returned in any case.
        with contextlib.suppress(OSError):
            print(error_lines(error, "the log of the instance"), file=sys.stderr, flush=True)
        return error.exit_code
    except SystemExit as error:
        # Its own code may be 0, which the supervisor takes for a stop on request.
        raise RuntimeError(f"code in this process called sys.exit({error.code!r}); remove the call") from error
    except OSError as error:
        known = as_file_error(error)
        if known is None:
            raise
        with contextlib.suppress(OSError):
            print(f"tidemark: {known}", file=sys.stderr, flush=True)
            log.info("where the file was used", exc_info=error)
        return known.exit_code


def _run(topology_name: str, number: int, stop: threading.Event) -> ExitCode:
    settings = Settings.load()
    topology = load(topology_name)
    plan = topology.plan()
    with contextlib.suppress(OSError):
        outage_path(settings.var_dir, plan.application_id, number).unlink()
    _process(plan, settings, number, topology_name, stop)
    return ExitCode.OK


@contextlib.contextmanager
def _named_outages(plan: TopologyPlan, settings: Settings, number: int) -> Iterator[None]:
    """Raise `BrokersAway` for an error that comes of unavailable brokers. `plan` names the topics that are needed."""
    try:
        yield
    except Exception as error:
        away = _brokers_away(plan, settings, number, error)
        if away is None:
            raise
        raise away from error


def _process(plan: TopologyPlan, settings: Settings, number: int, topology_name: str, stop: threading.Event) -> None:
    name = f"{plan.application_id}-{number}"
    use_temporary_folder(temporary_folders(settings.state_dir, name))
    # Spark takes seconds to start, most of them in its JVM. Meanwhile this thread checks broker, topics and folders. If it
    # refuses them, the process ends, and the JVM with it.
    starter = ThreadPoolExecutor(1, "spark-start")
    spark = starter.submit(spark_session, settings, name)
    with _named_outages(plan, settings, number):
        instance = make_instance(plan, settings, number, topology_name, probe_from_environment())
    source: Future[ColdSource] = starter.submit(
        lambda: SparkBatchSource(spark.result(), instance.plan, settings, number)
    )
    # Its plan has the names of the changelogs that are in use now.
    with _named_outages(instance.plan, settings, number):
        _run_instance(instance, source, stop)


def _run_instance(instance: Instance, source: Future[ColdSource], stop: threading.Event) -> None:
    failure: BaseException | None = None
    try:
        if not instance.is_awaited():
            # Others process its tasks until it joins, so they should not move before Spark has started.
            while not (source.done() or stop.is_set()):
                wait([source], timeout=_LOOK_S)
            if source.done():
                source.result()
        # An instance without tasks does not use its source, and must not stay in the group without one.
        source.add_done_callback(lambda done: stop.set() if done.exception() else None)
        _look_for_cycles_less_often()
        instance.run(StartingSource(source), stop)
        if source.done():
            source.result()
    except BaseException as error:
        failure = error
        raise
    finally:
        instance.close(failure)
        log.info("instance ended: %s", failure or "stopped on request")


def _look_for_cycles_less_often() -> None:
    """Let Python look through what exists by now never again, and through new objects more seldom.

    It looks for cycles among every 700 new objects, and the rows of a batch, of which none has one, are hundreds of thousands
    of them. That took a quarter of the time of an operator that calls a processor for each record.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _brokers_away(plan: TopologyPlan, settings: Settings, number: int, error: Exception) -> BrokersAway | None:
    """Return the error to end with if brokers are unavailable, and record the outage for the next launch.

    Returns None if the end has another cause, such as a refusal by the start plan.
    """
    if isinstance(error, InstanceFenced) or not _may_come_of_an_outage(error):
        return None
    topics = needed_topics(plan)
    outage = find_outage(settings, plan.application_id, number, topics)
    if outage is None and not isinstance(error, BrokersAway):
        return None
    why = outage.why if outage is not None else str(error)
    try:
        path = outage_path(settings.var_dir, plan.application_id, number)
        write_outage(path, RecordedOutage(wall_clock_ms(), why, topics))
    except OSError as unwritable:
        log.warning("failed to record the outage, so this end counts as a relaunch: %s", unwritable)
    return BrokersAway(why if outage is None else f"{why}; ended with: {error}")


def _may_come_of_an_outage(error: Exception) -> bool:
    if not isinstance(error, TidemarkError) or isinstance(error, PreflightFailed):
        return True
    return error.exit_code is ExitCode.RETRY


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Exception:  # noqa: BLE001 - it is told as Python would tell it.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        code = ExitCode.FAILED
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # A hanging thread of a client library must not keep a fenced or failed instance alive.
    os._exit(code)

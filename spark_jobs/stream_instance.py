"""One instance of a stream application: `stream_instance.py --topology NAME --instance N`.

Ends with `ExitCode`: 0 stopped as asked, 10 relaunch, 20 fenced, 30 refused, 2 wrong use, 1 anything else.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "include")]

from spark_jobs.batch_source import SparkBatchSource
from spark_jobs.session import spark_session
from tidemark.errors import ExitCode, TidemarkError
from tidemark.files import keep_files_private
from tidemark.instance.instance import Instance
from tidemark.probe import probe_from_environment
from tidemark.settings import Settings
from tidemark.topology.load import load

log = logging.getLogger("tidemark")


def main(arguments: list[str]) -> ExitCode:
    """Run one instance until SIGTERM or an error."""
    keep_files_private()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", required=True, help="module in include/topologies")
    parser.add_argument("--instance", type=int, default=0, help="0 … n-1, survives relaunches")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s %(name)s [{options.topology}-{options.instance}] %(message)s",
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        return _run(options.topology, options.instance, stop)
    except TidemarkError as error:
        print(f"tidemark: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code


def _run(topology_name: str, number: int, stop: threading.Event) -> ExitCode:
    settings = Settings.load()
    topology = load(topology_name)
    plan = topology.plan()
    # Broker, topics and folders are checked before Spark takes its seconds to start.
    instance = Instance(plan, settings, number, topology_name, probe_from_environment())
    failure: BaseException | None = None
    try:
        spark = spark_session(settings, f"{plan.application_id}-{number}")
        instance.run(SparkBatchSource(spark, instance.plan, settings, number, instance.folder / ".queries"), stop)
    except BaseException as error:
        failure = error
        raise
    finally:
        instance.close(failure)
        log.info("instance ended: %s", failure or "stopped as asked")
    return ExitCode.OK


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of a client library that hangs must not keep a fenced or failed instance alive.
    os._exit(code)

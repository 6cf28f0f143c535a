"""Behaves as `spark_jobs/stream_instance.py` does towards its supervisor, without Spark or a broker.

`test_instance_contract.py` holds it to the real one. Orders come from `<var_dir>/fake/<key>.json`, read ten times a
second: {"exit_code": 10, "times": 2} ends the next two processes so, {"deaf": true} ignores SIGTERM,
"outage" is what it then records of its brokers, "says" is a line that it writes with each batch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tidemark.errors import ExitCode
from tidemark.supervision.final_savepoint_request import leaving_path
from tidemark.supervision.instance_files import InstanceKey
from tidemark.supervision.live_instances import read_request
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage
from tidemark.supervision.run_file import RunFile, run_file_path, standby_file_path

_TICK_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topology", required=True)
    parser.add_argument("--instance", type=int, default=0)
    parser.add_argument("--standby", action="store_true", help="behave as a standby, which takes no savepoint")
    args = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    var_dir = Path(os.environ["TIDEMARK_VAR_DIR"])
    application_id = args.topology.replace("_", "-")
    folder = var_dir / "fake"
    folder.mkdir(parents=True, exist_ok=True)
    key = InstanceKey(application_id, args.instance, args.standby)
    orders = folder / f"{key}.json"
    owner = folder / f"{key}.owner"
    with (folder / "starts").open("a") as starts:
        starts.write(f"{key} {os.getpid()}\n")

    leaving = leaving_path(var_dir, application_id, args.instance)
    leaving.unlink(missing_ok=True)
    name = f"standby-{args.instance}" if args.standby else args.instance
    run_file = RunFile(
        (standby_file_path if args.standby else run_file_path)(var_dir, application_id, args.instance),
        {"application_id": application_id, "topology": args.topology, "instance": name},
    )
    run_file.update({"state": "CREATED"}, now=True)
    print(f"{key.kind} {key} begins", flush=True)
    # As a producer's init does: the last one to come fences the others.
    owner.write_text(str(os.getpid()))
    # An instance with a rate makes progress, so its watcher does not ask the broker for waiting input. There is no broker here.
    run_file.update(
        {
            "state": "RUNNING",
            "partitions": ["pulse-events[0]"],
            "sources": [["pulse-events"]],
            "records_per_second": 10.0,
        },
        now=True,
    )
    batch = 0
    while True:
        order = json.loads(orders.read_text()) if orders.exists() else {}
        if order.get("times", 1) > 0 and "exit_code" in order:
            orders.write_text(json.dumps({**order, "times": order.get("times", 1) - 1}))
            if "outage" in order:
                outage = RecordedOutage(int(time.time() * 1000), order["outage"], ())
                write_outage(outage_path(var_dir, application_id, args.instance), outage)
            print(f"tidemark: ordered to end with {order['exit_code']}", file=sys.stderr, flush=True)
            return int(order["exit_code"])
        if owner.read_text() != str(os.getpid()):
            print("tidemark: fenced by another copy", file=sys.stderr, flush=True)
            run_file.update({"state": "ERROR"}, now=True)
            return int(ExitCode.FENCED)
        if stop.is_set() and not order.get("deaf"):
            run_file.update({"state": "PENDING_SHUTDOWN"}, now=True)
            print("batch committed, ending", flush=True)
            if (asked := read_request(leaving)) is not None:
                print(f"last savepoint: id={asked.savepoint_id}", flush=True)
            run_file.update({"state": "NOT_RUNNING"}, now=True)
            return int(ExitCode.OK)
        batch += 1
        if "says" in order:
            print(f"batch {batch}: {order['says']}", flush=True)
        run_file.update({"batch": batch, "records_per_second": 10.0})
        threading.Event().wait(_TICK_S)


if __name__ == "__main__":
    sys.exit(main())

"""`make page`: how fast the Streams page is with 20 streams and a month of history, in a real Airflow and a real browser.

    python -m tests.system.page.run [--streams 20] [--days 30] [--loads 20] [--report FOLDER]

Between two loads passes more than the second for which the page shows to everybody what was rendered last.

Each stream has committed records of its own, so that the page reads them from a real broker. The history is written to the
database of facts: hourly checks, a drill and an audit a day, and events. No instance runs: their run files name this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table
from tests.support.airflow.real_airflow import RealAirflow, real_airflow
from tests.support.brokers import SINGLE_BROKER, brief
from tests.support.browser import open_tab
from tests.support.counting import CountingApp
from tests.support.overview import write_run_file

from tidemark import processes
from tidemark.audit.ranges import Position
from tidemark.audit.table import AuditedRange, write_audit
from tidemark.checks.store_growth import StoreSample, append, history_path
from tidemark.checks.verdict_table import write_verdicts
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.events.event import Event, EventKind
from tidemark.events.table import EVENTS, write_event
from tidemark.kafka import jars
from tidemark.names import TaskId
from tidemark.operations.drill_history.report import DrillReport, RebuildMethod, StoreDrill
from tidemark.operations.drill_history.table import write_drill
from tidemark.settings import Settings, project_root
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import Guarantee
from tidemark.verdict import Finding, Verdict

_HOUR_MS = 3_600_000
_CHECKS = ("lag", "retention", "compaction", "durability", "drill_age")
_MODULE = """from tidemark.topology.builder import Topology
def topology():
    made = Topology({name!r})
    made.stream("{name}-in", schema="id STRING").group_by_key().count(name="n", store="n").to("{name}-out")
    return made
"""
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
_LIVE = "document.getElementById('live')?.textContent === 'Live'"
_IDLE_S = 60.0
_APART_S = 1.1
_ASLEEP_S = 70.0
"""After this time without a visitor nothing of the page works in the web server."""
_EVENT_S = 5.0
"""While a page is open, a stream has an event this often, so that the history is read again."""
_GOAL_PAINT_MS, _GOAL_P95_MS, _GOAL_CORE = 1000, 200, 0.02


@dataclass(frozen=True)
class Measured:
    """The results. First paints and answers are in milliseconds.

    `cores` is the processor time, in cores, that an open page costs the web server.

    `first` is the first paint after the start of the web server, which imports the page and reads everything for it.
    """

    first: float
    paints: dict[str, list[float]]
    answers: dict[str, list[float]]
    cores: float

    def paint(self, page: str) -> float:
        """The median of a page's first paints."""
        return float(np.median(self.paints[page]))

    def p95(self, route: str) -> float:
        """The 95th percentile of a route's answers."""
        return float(np.percentile(self.answers[route], 95))


def run_stream(settings: Settings, admin: AdminClient, name: str) -> CountingApp:
    """Commit a few batches, so that the page has commit records, lag and stores to read."""
    app = CountingApp(settings, admin, name)
    app.feed(500)
    app.run()
    app.leave_group()
    write_run_file(
        settings.var_dir, name, records_per_second=1234.0, last_commit_ms=wall_clock_ms(), last_commit_seconds=0.2,
        partitions=[f"{name}-in[0]", f"{name}-in[1]"], topology_version=app.plan.version,
    )  # fmt: skip
    return app


def write_history(facts: FactsDatabase, settings: Settings, app: CountingApp, days: int) -> int:
    """Write the history of a stream until now. Returns the number of rows of the database."""
    now_ms, name, version = wall_clock_ms(), app.name, app.plan.version
    hours = range(24 * days, 0, -1)
    subjects = [f"{name}-in[{number}]" for number in range(4)]
    for check in _CHECKS:
        for hour in hours:
            found = [
                Finding(subject, Verdict.OK, "all is as it should be", {"limit": 900, "found": 12})
                for subject in subjects
            ]
            write_verdicts(facts, name, check, now_ms - hour * _HOUR_MS, found)
    for day in range(days, 0, -1):
        at_ms = now_ms - day * 24 * _HOUR_MS
        stores = tuple(
            StoreDrill(f"0_{task}", "n", RebuildMethod.CHANGELOG, "", Verdict.OK, "100 keys are equal", compared=100)
            for task in range(2)
        )
        drill_id = f"d{at_ms}"
        write_drill(
            facts,
            DrillReport(
                drill_id, name, version, Guarantee.EXACTLY_ONCE, at_ms, at_ms + 60_000, (), stores, (), 3, 3, ()
            ),
        )
        ranges = [
            AuditedRange(
                drill_id,
                at_ms,
                0,
                1000,
                9.0,
                Verdict.OK,
                Position(TaskId(0, task), version, 10 * day, at_ms, {}, StreamTimes(at_ms, {}), {}),
            )
            for task in range(2)
        ]
        write_audit(facts, name, ranges)
    events = [
        {
            "application_id": name, "topology_version": version, "instance": 0, "time_ms": now_ms - hour * _HOUR_MS,
            "kind": str(EventKind.STATE), "body": json.dumps({"new": "RUNNING", "old": "RESTORING"}),
        }
        for hour in hours
        for _ in range(4)
    ]  # fmt: skip
    facts.insert(EVENTS, events)
    samples = [
        StoreSample(now_ms - hour * _HOUR_MS, name, f"0_{task}", "n", "0", 9000 - hour, 50_000 - hour, None, None)
        for hour in hours
        for task in range(2)
    ]
    append(history_path(settings.var_dir, name), samples)
    return len(_CHECKS) * len(hours) * len(subjects) + 3 * days + len(events)


@contextmanager
def site(streams: int, days: int, console: Console) -> Iterator[tuple[RealAirflow, Settings, str]]:
    """Start a broker and Airflow's web server with so many streams. Yields it, and the name of one of the streams."""
    with tempfile.TemporaryDirectory(prefix="tidemark-page-") as made:
        folder = Path(made)
        topologies = folder / "topologies"
        topologies.mkdir()
        names = [f"stream_{number:02d}" for number in range(streams)]
        for name in names:
            (topologies / f"{name}.py").write_text(_MODULE.format(name=name))
        os.environ["TIDEMARK_TOPOLOGY_PATH"] = str(topologies)
        mark = f"page-{uuid.uuid4()}"
        os.environ[processes.MARK] = mark
        kafka = jars.ensure("kafka", Settings.load())
        with brief(EmbeddedBroker(folder / "broker", kafka, overrides=SINGLE_BROKER)) as broker:
            settings = Settings.load(
                var_dir=folder / "var", state_dir=folder / "state", bootstrap_servers=broker.bootstrap
            )
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            facts, rows = FactsDatabase(settings), 0
            for number, name in enumerate(names, 1):
                app = run_stream(settings, admin, name)
                rows += write_history(facts, settings, app, days)
                console.print(f"{number} of {streams} streams have committed, and {rows:,} rows of history are written")
            facts.close()
            with real_airflow(settings, project_root() / "dags", mark, "api-server", "dag-processor") as airflow:
                airflow.api.wait_for_dag("restore_oncall", 180)
                for name in names:
                    airflow.api.wait_for_dag(f"stream__{name}", 180)
                    airflow.api.unpause(f"stream__{name}")
                    write_run_file(
                        settings.var_dir, name, records_per_second=1234.0, last_commit_ms=wall_clock_ms(),
                        last_commit_seconds=0.2, partitions=[f"{name}-in[0]"], topology_version="1",
                    )  # fmt: skip
                yield airflow, settings, names[0]


@contextmanager
def events_of(stream: str, settings: Settings) -> Iterator[None]:
    """Write an event of a stream every few seconds while the block runs."""
    stop = threading.Event()
    facts = FactsDatabase(settings)

    def write() -> None:
        while not stop.wait(_EVENT_S):
            body = {"new": "RUNNING", "old": "RESTORING"}
            write_event(facts, Event(EventKind.STATE, stream, "1", 0, wall_clock_ms(), body))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
        facts.close()


def measure(
    airflow: RealAirflow, settings: Settings, stream: str, loads: int, folder: Path, console: Console
) -> Measured:
    """Load the pages so many times in the browser, and ask for each route twice as often."""
    url, token = airflow.api.url, airflow.token("admin")
    pages = {
        "all streams": "/streams/",
        "one stream": f"/streams/applications/{stream}",
        "a form": f"/streams/forms/restore_oncall?topology={stream}",
    }
    routes = {**pages, "metrics": "/streams/metrics"}
    paints: dict[str, list[float]] = {name: [] for name in pages}
    answers: dict[str, list[float]] = {name: [] for name in routes}
    with open_tab(folder) as tab:
        tab.set_cookie("_token", token, url)
        tab.look_like(1440)
        # A person comes to the page from Airflow's menu.
        tab.open(f"{url}/")
        tab.wait_for("document.querySelector('a[href$=\"/plugin/streams\"]') !== null")
        tab.open(url + pages["all streams"])
        tab.wait_for(f"({_PAINT}) !== null")
        first = float(tab.value(_PAINT))
        console.print(f"all streams, which the web server shows for the first time: first paint {first:.0f} ms")
        tab.wait_for("document.querySelectorAll('.streams tbody tr').length > 3 && " + _LIVE)
        for name, path in pages.items():
            for _ in range(loads):
                time.sleep(_APART_S)
                tab.open(url + path)
                tab.wait_for(f"({_PAINT}) !== null")
                paints[name].append(float(tab.value(_PAINT)))
            console.print(f"{name}: first paint {np.median(paints[name]):.0f} ms")
        tab.open("about:blank")
        time.sleep(_ASLEEP_S)
        idle = cores_of(airflow, _IDLE_S)
        tab.open(url + pages["one stream"])
        tab.wait_for(_LIVE)
        tab.wait_for("!document.getElementById('s-figures').innerText.includes('…')")
        # The open page receives updates all the time.
        with events_of(stream, settings):
            open_page = cores_of(airflow, _IDLE_S)
        with httpx.Client(trust_env=False, timeout=60, headers={"Authorization": f"Bearer {token}"}) as client:
            for name, path in routes.items():
                for _ in range(2 * loads):
                    time.sleep(_APART_S)
                    began = time.perf_counter()
                    answer = client.get(url + path)
                    answers[name].append(1000 * (time.perf_counter() - began))
                    assert answer.status_code == 200, answer.text
                console.print(f"{name}: 95 % of the answers within {np.percentile(answers[name], 95):.0f} ms")
        tab.picture(folder / "page.png")
    return Measured(first, paints, answers, open_page - idle)


def cores_of(airflow: RealAirflow, seconds: float) -> float:
    """The part of a core that the web server and its children use."""

    def used_s() -> float:
        leader = psutil.Process(airflow.pid("api-server"))
        times = [process.cpu_times() for process in (leader, *leader.children(recursive=True))]
        return sum(one.user + one.system for one in times)

    before = used_s()
    time.sleep(seconds)
    return (used_s() - before) / seconds


def table_of(measured: Measured) -> Table:
    """A row per page or route."""
    table = Table("page", "first paint, ms", "answer p50, ms", "answer p95, ms")
    for name, answers in measured.answers.items():
        paint = f"{measured.paint(name):.0f}" if name in measured.paints else ""
        table.add_row(name, paint, f"{np.median(answers):.0f}", f"{measured.p95(name):.0f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say whether the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--days", type=int, default=30, help="length of the history")
    parser.add_argument("--loads", type=int, default=20, help="loads of each page; each route is asked twice as often")
    parser.add_argument("--report", type=Path, default=project_root() / "var" / "page", help="folder for the picture")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="tidemark-browser-") as browser:
        with site(options.streams, options.days, console) as (airflow, settings, stream):
            measured = measure(airflow, settings, stream, options.loads, Path(browser), console)
        options.report.mkdir(parents=True, exist_ok=True)
        (Path(browser) / "page.png").replace(options.report / "page.png")
    console.print(table_of(measured))
    paint = max(map(measured.paint, measured.paints))
    p95 = max(map(measured.p95, measured.answers))
    reached = max(paint, measured.first) < _GOAL_PAINT_MS and p95 < _GOAL_P95_MS and measured.cores < _GOAL_CORE
    print(
        f"page: streams={options.streams} days={options.days} first_paint_ms={paint:.0f} "
        f"after_start_ms={measured.first:.0f} p95_ms={p95:.0f} core={measured.cores:.3f} "
        f"goals={'reached' if reached else 'missed'}"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())

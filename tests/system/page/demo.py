"""`make page-demo`: every view of the Streams page of a running demo, and what it says when something breaks.

    make demo
    python -m tests.system.page.demo [--pictures FOLDER]

Each view is looked at in two widths, light and dark: nothing may keep people from reading it, overflow, be an error or come
from elsewhere, and its charts must have data. Then records that cannot be read are sent, an instance is killed, and the broker
is stopped for a while: within 15 s the page must say so. The last line is `page-demo: views=… looks=… faults=0`; the exit code
is 1 if there are faults.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console
from tests.support.browser import Tab, open_tab

from tidemark.devstack import record
from tidemark.devstack.airflow import AirflowApi
from tidemark.errors import PreflightFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.processes import Identity
from tidemark.settings import Settings, project_root
from tidemark.supervision.run_file import RunView, run_file_path
from tidemark.topology_loader import load, names

_WIDTHS = (390, 1440)
_SAYS_WITHIN_S = 15.0
_BROKEN = "clicks"
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_LIVE = "document.getElementById('live')?.textContent === 'Live'"
_READ = "!document.getElementById('s-figures').innerText.includes('…')"
_BARS = "document.querySelectorAll('#s-throughput rect').length"
_FORMS = "[...document.querySelectorAll('a.button[href*=\"/forms/\"]')].map(link => link.pathname + link.search)"
_RUNS = "document.querySelector('#s-head .pill')?.innerText.includes('Running')"
_BROKER_AWAY = "document.querySelector('#s-head [role=alert]') !== null"
_CONCERNS = "(document.getElementById('s-concerns')?.innerText ?? '')"


class Looks:
    """Looks at pages and collects what is wrong with them."""

    def __init__(self, tab: Tab, url: str, pictures: Path, console: Console) -> None:
        self._tab, self._url, self._pictures, self._console = tab, url, pictures, console
        self.count = 0
        self.faults: list[str] = []

    def at(self, name: str, path: str, ready: str, *more: str) -> None:
        """Open a view in all its forms. `ready` is when it is complete; each of `more` must be true then."""
        for dark in (False, True):
            for width in _WIDTHS:
                self._tab.look_like(width, dark=dark)
                self._tab.errors.clear()
                self._tab.requests.clear()
                self._tab.open(self._url + path)
                self._tab.wait_for(ready)
                shown = f"{name}-{width}-{'dark' if dark else 'light'}"
                self._tab.picture(self._pictures / f"{shown}.png")
                elsewhere = [one for one in self._tab.requests if not one.startswith((self._url, "data:"))]
                overflow = self._tab.value(_OVERFLOW)
                untrue = [one for one in more if not self._tab.value(one)]
                found = [*self._tab.errors, *elsewhere, *self._tab.barriers(), *untrue]
                self.faults += [f"{shown}: {fault}" for fault in found + ([f"overflow {overflow}"] if overflow else [])]
                self.count += 1

    def says(self, what: str, script: str, cause: Callable[[], object]) -> None:
        """Bring something about, and wait until the open page says so, at most 15 s; it may not have said so before."""
        if self._tab.value(script):
            self.faults.append(f"{what}: the page says so before it happens: {script}")
            return
        began = time.monotonic()
        cause()
        try:
            self._tab.wait_for(script, timeout_s=max(0.1, _SAYS_WITHIN_S - (time.monotonic() - began)))
        except AssertionError:
            self.faults.append(
                f"{what}: not said within {_SAYS_WITHIN_S:.0f} s; the page says {self._tab.value(_CONCERNS)!r}"
            )
        else:
            self._console.print(f"{what}: said after {time.monotonic() - began:.1f} s")


def look_at_all(tab: Tab, url: str, pictures: Path, console: Console) -> Looks:
    """Look at the page of all streams, at each stream, and at each form that a button opens."""
    looks = Looks(tab, url, pictures, console)
    looks.at("all", "/streams/", _LIVE, f"document.querySelectorAll('.streams tbody tr').length === {len(names())}")
    forms: set[str] = set()
    for name in names():
        looks.at(name, f"/streams/applications/{name}", f"{_LIVE} && {_READ}", f"{_BARS} > 0")
        forms |= {path for path in tab.value(_FORMS) if name == _BROKEN}
        console.print(f"{name}: looked at")
    if not forms:
        looks.faults.append(f"the page of {_BROKEN} has no button that opens a form")
    for path in sorted(forms):
        dag_id = path.split("/forms/")[1].split("?")[0]
        chosen = f"document.getElementById('form').innerHTML.includes('{_BROKEN}')"
        looks.at(f"form-{dag_id}", path, "document.getElementById('form') !== null", chosen)
        console.print(f"the form of {dag_id}: looked at")
    return looks


def break_things(looks: Looks, tab: Tab, url: str, settings: Settings, broker: Identity) -> None:
    """Send records that cannot be read, kill an instance, and stop the broker; each time the open page must say so."""
    plan = load(_BROKEN).plan()
    tab.look_like(1440)
    tab.open(f"{url}/streams/applications/{_BROKEN}")
    tab.wait_for(f"{_LIVE} && {_READ} && {_RUNS}")

    def send_what_is_no_json() -> None:
        producer = Producer(librdkafka_config(settings))
        for _ in range(20):
            producer.produce(plan.subtopologies[0].source_topics[0], b"{not json", b"key")
        producer.flush(30)

    # Those of an earlier run of this harness stay on the page for 15 minutes.
    before = json.dumps(tab.value(_CONCERNS))
    looks.says(
        "dead letters", f"{_CONCERNS}.includes('dead letters') && {_CONCERNS} !== {before}", send_what_is_no_json
    )

    run = RunView.read(run_file_path(settings.var_dir, plan.application_id, 0))
    if run is None or not run.process.is_alive():
        raise PreflightFailed(f"no instance of {_BROKEN} runs here; start the demo with `make demo`")
    process = run.process
    looks.says("a killed instance", f"!({_RUNS})", lambda: os.kill(process.pid, signal.SIGKILL))
    tab.wait_for(_RUNS, timeout_s=180)

    with ExitStack() as cleanup:
        looks.says("a broker that is paused", _BROKER_AWAY, lambda: cleanup.enter_context(stopped(broker.pid)))
    tab.wait_for(f"{_RUNS} && !({_BROKER_AWAY})", timeout_s=180)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def main() -> int:
    """Look, and say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pictures", type=Path, default=project_root() / "var" / "page-demo", help="folder for the pictures"
    )
    options = parser.parse_args()
    settings, console = Settings.load(), Console(highlight=False)
    stack = record.load(settings.var_dir)
    if stack is None or stack.airflow is None:
        raise PreflightFailed("no demo runs here; start it with `make demo`")
    broker = stack.services.get("broker")
    if broker is None or not broker.identity.is_alive():
        raise PreflightFailed("the demo has no broker of its own here; start it with `make demo`")
    access = stack.airflow
    url = access.url
    with tempfile.TemporaryDirectory(prefix="tidemark-browser-") as profile, open_tab(Path(profile)) as tab:
        tab.set_cookie("_token", AirflowApi.of(replace(access, username="guest")).log_in(), url)
        tab.open(f"{url}/streams/applications/{_BROKEN}")
        tab.wait_for(f"document.getElementById('s-head')?.innerText.includes('{_BROKEN}')")
        buttons = tab.value("document.querySelectorAll('.button').length")
        tab.set_cookie("_token", AirflowApi.of(access).log_in(), url)
        looks = look_at_all(tab, url, options.pictures, console)
        if buttons:
            looks.faults.append(f"a viewer sees {buttons} buttons")
        break_things(looks, tab, url, settings, broker.identity)
    for fault in looks.faults:
        console.print(fault, markup=False)
    views = looks.count // (2 * len(_WIDTHS))
    print(f"page-demo: views={views} looks={looks.count} faults={len(looks.faults)}")
    return 1 if looks.faults else 0


if __name__ == "__main__":
    sys.exit(main())

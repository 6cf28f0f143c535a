"""A client that queries the state until the end of a case."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.system.crash.bench import PATIENTS, RULES
from tests.system.failover.cases import Queries

from tidemark.queries.access import token_file
from tidemark.supervision.instance_files import known_instances, known_standbys
from tidemark.supervision.run_file import QUERY_URL, RunView

_EVERY_S = 0.1
_TIMEOUT_S = 10.0
_ASKED = {"from_ms": 0, "limit": 5}


def urls(var_dir: Path, application_id: str) -> list[str]:
    """Return the URLs at which live processes of the application answer queries."""
    known = [*known_standbys(var_dir, application_id), *known_instances(var_dir, application_id)]
    runs = [RunView.read(files.run) for files in known]
    return [str(url) for run in runs if run is not None and run.is_running() and (url := run.values.get(QUERY_URL))]


@contextmanager
def asking(var_dir: Path, application_id: str) -> Iterator[Queries]:
    """Ask for the windows of one patient after the other, of any live process, until the end of the block."""
    found, stop = Queries(), threading.Event()
    token = next(iter(json.loads(token_file(var_dir, application_id).read_text())))
    headers = {"Authorization": f"Bearer {token}"}

    def ask() -> None:
        with httpx.Client(headers=headers, timeout=_TIMEOUT_S) as client:
            for number in itertools.count():
                if stop.wait(_EVERY_S):
                    return
                roles = _answer(client, urls(var_dir, application_id), f"p{number % PATIENTS:04d}", found)
                if roles is None:
                    found.miss(time.monotonic())
                    continue
                found.answered += 1
                found.by_standby += "standby" in roles

    thread = threading.Thread(target=ask, name="queries")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(2 * _TIMEOUT_S)


def _answer(client: httpx.Client, places: list[str], patient: str, found: Queries) -> set[str] | None:
    """Return the roles of the processes that answered; None if no process did."""
    said = []
    for url in places:
        try:
            answer = client.get(f"{url}/v1/stores/{RULES.store}/windows", params={"key": patient, **_ASKED})
        except httpx.HTTPError as error:
            said.append(f"{url}: {type(error).__name__}")
            continue
        if answer.status_code == 200:
            return {position["role"] for position in answer.json()["positions"]}
        said.append(f"{url}: {answer.status_code} {answer.text[:200]}")
    if len(found.examples) < 5:
        found.examples.append(f"query of {patient} was not answered: {'; '.join(said) or 'no process answers queries'}")
    return None

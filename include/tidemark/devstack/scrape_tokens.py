"""The tokens of a Prometheus in a container, in files that it can read.

`python -m tidemark.devstack.scrape_tokens instances FILE` creates one that all applications accept for their metrics, and
`… airflow FILE URL USER PASSWORD_FILE` keeps one of a user of Airflow, whose tokens end after a day.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tidemark.atomic_file import keep_files_private, replace_file
from tidemark.devstack.airflow import AirflowApi
from tidemark.devstack.record import AirflowAccess
from tidemark.errors import InvalidTopology, TidemarkError
from tidemark.queries.access import METRICS, read_token_file, token_file
from tidemark.settings import Settings
from tidemark.topology_loader import load, names

log = logging.getLogger(__name__)

RENEW_S, RETRY_S = 6 * 3600.0, 5.0
_TOKEN_BYTES = 32
_READABLE = 0o644
"""Prometheus has a user of its own, so only the folder of a file protects it."""


def share_token(file: Path, var_dir: Path, application_ids: Iterable[str]) -> None:
    """Let the applications accept the token in `file`, which is created, for their metrics. A running process does not see it.

    Raises `InvalidSettings` for a damaged token file.
    """
    if not file.exists():
        _write(file, secrets.token_urlsafe(_TOKEN_BYTES))
    token = file.read_text()
    for application_id in application_ids:
        path = token_file(var_dir, application_id)
        known = read_token_file(path, creates=True)
        if token not in known:
            replace_file(path, json.dumps({**known, token: [METRICS]}) + "\n", synced=False, private=True)


def keep_token(file: Path, log_in: Callable[[], str], wait: Callable[[float], None]) -> None:
    """Write what `log_in` returns, and again before it ends. Returns only by an exception of `wait`, which pauses."""
    while True:
        try:
            _write(file, log_in())
            pause_s = RENEW_S
        except TidemarkError as error:
            log.warning("no token of Airflow yet: %s", error)
            pause_s = RETRY_S
        wait(pause_s)


def _write(file: Path, token: str) -> None:
    replace_file(file, token, synced=False)
    file.chmod(_READABLE)


def _applications() -> list[str]:
    """Return the applications of all topologies that can be loaded."""
    found = []
    for name in names():
        try:
            found.append(load(name).plan().application_id)
        except InvalidTopology as error:
            log.warning("no token for the metrics of %s: %s", name, error)
    return found


def main(arguments: list[str]) -> None:
    """Do what the module's docstring says; `airflow` never returns."""
    keep_files_private()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    what, file, *rest = arguments
    if what == "instances":
        share_token(Path(file), Settings.load().var_dir, _applications())
    else:
        access = AirflowAccess(*rest)
        keep_token(Path(file), lambda: AirflowApi.of(access).log_in(), time.sleep)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Asking the processes of an application from a command: which one, with which token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tidemark.errors import ExitCode, TidemarkError
from tidemark.queries.access import read_token_file, token_file
from tidemark.queries.service import QUERY_URL
from tidemark.settings import Settings
from tidemark.supervision.run_file import RunView


class QueryFailed(TidemarkError):
    """A query was not answered. The message has the reason and what to do."""

    exit_code = ExitCode.FAILED


class QueryUnavailable(QueryFailed):
    """Nobody can answer at present. The same query may succeed later."""

    exit_code = ExitCode.RETRY


def local_url(var_dir: Path, application_id: str) -> str:
    """Return the address of a process of this machine that answers queries, an instance's if there is one.

    Raises `QueryUnavailable`.
    """
    for folder in ("instances", "standbys"):
        for path in sorted((var_dir / folder).glob(f"{application_id}-*.json")):
            run = RunView.read(path)
            if run is None or run.values.get("application_id") != application_id or not run.is_running():
                continue
            if url := run.values.get(QUERY_URL):
                return str(url)
    raise QueryUnavailable(
        f"no instance and no standby of {application_id} answers queries on this machine: start one, or pass --url of another "
        "machine's (`query_url` in its run file)"
    )


def token_of(settings: Settings, application_id: str) -> str:
    """Return the token to ask with. Raises `InvalidSettings`, `QueryFailed`."""
    given = settings.query_token.get_secret_value()
    if given:
        return given
    path = token_file(settings.var_dir, application_id)
    if not path.exists():
        raise QueryFailed(
            f"there is no token to ask {application_id} with: set TIDEMARK_QUERY_TOKEN in the environment; {path}, which an "
            "instance makes, does not exist"
        )
    return next(iter(read_token_file(path)))


def ask(
    settings: Settings,
    application_id: str,
    url: str | None,
    path: str,
    params: Mapping[str, Any],
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Send a query and return its answer. With a `body` it is a POST. Blocks.

    Raises `QueryFailed` with what the process said, `QueryUnavailable` if it may say something else later.
    """
    at = url or local_url(settings.var_dir, application_id)
    headers = {"Authorization": f"Bearer {token_of(settings, application_id)}"}
    given = {name: value for name, value in params.items() if value is not None}
    try:
        # The process ends a query after its own time-out, and says so.
        with httpx.Client(base_url=at, headers=headers, timeout=2 * settings.query_timeout_ms / 1000) as client:
            answer = client.get(path, params=given) if body is None else client.post(path, params=given, json=body)
            found: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise QueryUnavailable(
            f"{at} does not answer ({type(error).__name__}): look whether that process still runs, with `tidemark status`"
        ) from error
    if answer.is_success:
        return found
    kind = QueryUnavailable if answer.status_code in (429, 503) else QueryFailed
    raise kind(f"{found.get('detail', answer.status_code)}: {found.get('remedy', 'look at the log of that process')}")

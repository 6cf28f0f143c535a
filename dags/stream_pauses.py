"""`stream_pauses`: stops the streams whose DAG is paused."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidemark.errors import InvalidTopology
from tidemark.topology_loader import load, names
from tidemark_airflow.pausing import pauses_dag

log = logging.getLogger(__name__)


def _streams() -> Mapping[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names():
        try:
            found[f"stream__{name}"] = load(name).application_id
        except InvalidTopology as error:
            log.warning("topology %s cannot be loaded, so a pause does not stop its stream: %s", name, error)
            found[f"stream__{name}"] = None
    return found


dag = pauses_dag(_streams)

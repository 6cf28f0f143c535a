"""`stream_pauses`: stops the streams whose DAG is paused."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidemark.errors import ApplicationIdTaken
from tidemark.topology.builder import Topology
from tidemark.topology_loader import load_all
from tidemark_airflow.pausing import pauses_dag

log = logging.getLogger(__name__)


def _streams() -> Mapping[str, str | None]:
    found: dict[str, str | None] = {}
    for name, loaded in load_all().items():
        if isinstance(loaded, Topology):
            found[f"stream__{name}"] = loaded.application_id
        elif not isinstance(loaded, ApplicationIdTaken):
            log.warning("topology %s cannot be loaded, so a pause does not stop its stream: %s", name, loaded)
            found[f"stream__{name}"] = None
    return found


dag = pauses_dag(_streams)

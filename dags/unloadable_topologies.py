"""The import error of this file names the topology modules that have no DAG, and where the reason is. It makes no DAG."""

from __future__ import annotations

from tidemark.errors import InvalidTopology
from tidemark_airflow.dag import stream_dags

if _faults := stream_dags().faults:
    raise InvalidTopology("\n".join(_faults))

"""One DAG per topology: `stream__<name>` keeps it running. Each module in `include/topologies/` gets one."""

from __future__ import annotations

from tidemark.topology_loader import load_all
from tidemark_airflow.dag import stream_dag, unloadable_dag

for _name, _loaded in load_all().items():
    try:
        _dag = unloadable_dag(_name, _loaded) if isinstance(_loaded, Exception) else stream_dag(_name, _loaded)
    except Exception as _error:  # noqa: BLE001 - a topology is user code, and the others must still appear
        _dag = unloadable_dag(_name, _error)
    globals()[_dag.dag_id] = _dag

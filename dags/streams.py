"""One DAG per topology: `stream__<name>` keeps it running. Each module in `include/topologies/` gets one."""

from __future__ import annotations

from tidemark.topology_loader import load, names
from tidemark_airflow.dag import stream_dag, unloadable_dag

for _name in names():
    try:
        _dag = stream_dag(_name, load(_name))
    except Exception as _error:  # noqa: BLE001 - a topology is user code, and the others must still appear
        _dag = unloadable_dag(_name, _error)
    globals()[_dag.dag_id] = _dag

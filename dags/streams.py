"""One DAG per topology: `stream__<name>` keeps it running. Each module in `include/topologies/` gets one.

`unloadable_topologies.py` names the modules that do not load: an error here would deactivate the DAGs of all streams.
"""

from __future__ import annotations

from tidemark_airflow.dag import stream_dags

for _dag in stream_dags().dags:
    globals()[_dag.dag_id] = _dag

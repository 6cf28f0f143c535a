"""What Airflow looks up by name while it reads a DAG from its database; the package beside this holds all of it."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from tidemark_airflow.alerting import SinceCreated


class TidemarkPlugin(AirflowPlugin):
    """Without it, no DAG with a deadline of Tidemark's can be loaded."""

    name = "tidemark"
    deadline_references = (SinceCreated,)

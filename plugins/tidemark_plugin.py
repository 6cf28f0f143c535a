"""The Airflow plugin: registers the classes that Airflow looks up by name when it reads a DAG from its database."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from tidemark_airflow.alerting import SinceCreated


class TidemarkPlugin(AirflowPlugin):
    """Registers the deadline reference of Tidemark. Without it, Airflow cannot load a DAG that has such a deadline."""

    name = "tidemark"
    deadline_references = (SinceCreated,)

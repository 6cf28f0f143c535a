"""The Airflow plugin: the Streams page, and the classes that Airflow looks up by name when it reads a DAG from its database."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from tidemark_airflow.alerting import SinceCreated
from tidemark_airflow.one_writer import middlewares
from tidemark_airflow.page_mount import URL_PREFIX, LoadsEarly, StreamsPage, page_views

_PAGE = StreamsPage()


class TidemarkPlugin(AirflowPlugin):
    """Registers the page, the order of requests that write, and a deadline reference.

    Airflow cannot load a DAG that has such a deadline without it.
    """

    name = "tidemark"
    deadline_references = (SinceCreated,)
    fastapi_apps = ({"app": _PAGE, "url_prefix": URL_PREFIX, "name": "Streams"},)
    fastapi_root_middlewares = (
        *middlewares(conf.get("database", "sql_alchemy_conn", fallback="")),
        {"middleware": LoadsEarly, "kwargs": {"page": _PAGE}, "name": "Load the Streams page early"},
    )
    external_views = page_views(urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/"))

"""The Streams page in Airflow's menu: its addresses, and that it costs nothing until somebody opens it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from tidemark_airflow import page_mount
from tidemark_airflow.page_mount import LoadsEarly, StreamsPage, page_views


@pytest.mark.parametrize("base_path", ["", "/airflow"])
def test_the_views_should_be_below_airflows_path(base_path):
    menu, tab = page_views(base_path)
    assert (menu["href"], menu["destination"]) == (f"{base_path}/streams/", "nav")
    assert (tab["href"], tab["destination"]) == (f"{base_path}/streams/dags/{{DAG_ID}}", "dag")
    assert menu["url_route"] != tab["url_route"]


def test_the_application_should_be_made_once_for_all_requests(monkeypatch):
    made, asked = [], []

    async def app(scope, receive, send):
        asked.append(scope)

    def load(self):
        if self._app is None:
            made.append(1)
            self._app = app

    monkeypatch.setattr(StreamsPage, "load", load)
    page = StreamsPage()

    async def ask():
        for number in range(3):
            await page({"number": number}, None, None)

    asyncio.run(ask())
    assert (made, [scope["number"] for scope in asked]) == ([1], [0, 1, 2])


def test_the_page_should_be_loaded_once_a_browser_asks_for_anything(monkeypatch):
    loaded, asked = threading.Semaphore(0), []
    monkeypatch.setattr(StreamsPage, "load", lambda self: loaded.release())

    async def app(scope, receive, send):
        asked.append(scope)

    early = LoadsEarly(app, StreamsPage())
    program = {"type": "http", "headers": [(b"accept", b"application/json")]}
    browser = {"type": "http", "headers": [(b"host", b"x"), (b"accept", b"text/html,*/*;q=0.8")]}

    async def ask(*scopes):
        for scope in scopes:
            await early(scope, None, None)

    asyncio.run(ask({"type": "lifespan"}, program))
    assert not loaded.acquire(timeout=0.1)
    asyncio.run(ask(browser, browser))
    assert loaded.acquire(timeout=60)
    assert not loaded.acquire(timeout=0.1)
    assert asked == [{"type": "lifespan"}, program, browser, browser]


def test_a_part_of_airflow_that_loads_the_plugin_should_not_load_the_page():
    code = (
        f"import sys; import {page_mount.__name__}; StreamsPage = {page_mount.__name__}.StreamsPage(); "
        "print([name for name in ('fastapi', 'jinja2', 'tidemark.overview', 'confluent_kafka') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The listener on the page of events is short, and does what the page says."""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.events import progress

from tidemark.errors import OutcomeUnknown
from tidemark.events.user_listener import METHODS, load_listeners

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


@pytest.fixture
def chat():
    """What a chat on loopback was told, and its address."""
    summary = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self):
            summary.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield summary, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_should_have_a_short_listener_on_the_page_that_reports_failures_and_restores(chat, monkeypatch):
    summary, url = chat
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.strip().splitlines()) < 20
    module = ModuleType("alerts")
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, "alerts", module)
    monkeypatch.setenv("ALERTS_URL", url)
    (listener,) = load_listeners(["alerts:Alerts"], "app", 1)
    listener.on_restore_end(progress(110, elapsed_s=7.0))
    listener.on_failure(OutcomeUnknown("the broker is away"))
    listener.close(60)
    assert summary == ["app-1: n restored in 7 s", "app-1 ends: the broker is away"]


def test_should_list_the_methods_of_a_listener_on_the_page():
    listed = PAGE.read_text().split("| method |")[1].split("For example")[0]
    assert tuple(re.findall(r"`(on_\w+)\(", listed)) == METHODS

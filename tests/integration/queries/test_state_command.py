"""`tidemark state` as a person uses it, on a running instance."""

from __future__ import annotations

import json
import re
import socket

import pytest
from tests.integration.queries.test_instance_queries import is_level, running
from tests.support.counting import CountingApp
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.client import QueryFailed, QueryUnavailable
from tidemark.errors import TidemarkError
from tidemark.processes import wait_until

pytestmark = pytest.mark.broker


def test_should_show_what_the_stores_hold(settings, admin, unique, tmp_path, monkeypatch):
    app = CountingApp(settings.model_copy(update={"query_port": 0, "query_timeout_ms": 30_000}), admin, unique("asked"))
    module = app.for_commands(tmp_path, monkeypatch)

    def command(*words: str):
        result = CliRunner().invoke(build(), ["state", *words])
        if isinstance(result.exception, TidemarkError):
            raise result.exception
        return result

    with pytest.raises(QueryUnavailable, match="no instance and no standby"):
        command("get", module, "n", "k00000")
    app.feed(1000, keys=50)
    with running(app) as client:
        assert wait_until(lambda: is_level(app, client), 60)
        expected = dict(app.expected)
        found = command("get", module, "n", "k00007")
        assert found.exit_code == 0
        assert str(expected["k00007"]) in found.stdout
        assert "active in 0" in found.stdout
        assert command("get", module, "n", "nothing").exit_code == 1
        body = json.loads(command("get", module, "n", "--hex", b"k00007".hex(), "--json").stdout)
        assert body["entry"] == {"key": "k00007", "value": {"n": expected["k00007"]}}

        body = json.loads(command("keys", module, "n", "k00001", "k00002", "nothing", "--json").stdout)
        assert {e["key"] for e in body["entries"]} == {"k00001", "k00002"}
        monkeypatch.setenv("TIDEMARK_QUERY_PAGE_RECORDS", "7")
        body = json.loads(command("range", module, "n", "--json").stdout)
        assert {e["key"]: e["value"]["n"] for e in body["entries"]} == expected
        assert body["is_complete"]
        body = json.loads(command("range", module, "n", "--prefix", "k0001", "--json").stdout)
        assert {e["key"] for e in body["entries"]} == {key for key in expected if key.startswith("k0001")}
        few = command("range", module, "n", "--limit", "3")
        assert "there are more than 3 results" in few.stdout

        assert command("count", module, "n").stdout.startswith("50\n")
        assert command("count", module, "n", "--approximate").stdout.startswith("about ")
        own = json.loads(command("count", module, "n", "--json").stdout)["position"]
        assert command("count", module, "n", "--at-least", own, "--max-lag-records", "0").exit_code == 0
        with pytest.raises(QueryUnavailable, match="at_least is 999999"):
            command("count", module, "n", "--at-least", "0_0:999999")
        with pytest.raises(QueryFailed, match="has no store other: query one of the stores n"):
            command("count", module, "other")
        with pytest.raises(QueryFailed, match="key-value store"):
            command("windows", module, "n", "--from=-10m")
        with pytest.raises(QueryFailed, match="key-value store"):
            command("sessions", module, "n", "k")
        shown = command("metadata", module, "n", "k00007")
        assert "active" in shown.stdout
        assert socket.gethostname() in shown.stdout
        (near,) = re.findall("without a standby in another rack: (.*)", shown.stdout)
        assert near in ("0_0", "0_1")
        tasks = json.loads(command("metadata", module, "n", "--json").stdout)["tasks"]
        assert [task["task"] for task in tasks] == ["0_0", "0_1"]
        monkeypatch.setenv("TIDEMARK_QUERY_TOKEN", "wrong")
        with pytest.raises(QueryFailed, match="not one of the tokens"):
            command("count", module, "n")

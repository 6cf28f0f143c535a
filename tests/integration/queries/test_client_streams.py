"""Exports, watches and events through the Python client, from a real server of stores in memory."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from tests.support.queries import ALL_TASKS, APP, ScriptedChanges, ScriptedParts, counts_host, fill, queried_plan
from tests.support.query_server import served
from tests.support.secured import Authority
from tests.support.standby import count as count_value
from tests.unit.queries.test_query_api import api_of, problem
from tests.unit.queries.test_query_api import client as http_client

from tidemark.cli.output import Output
from tidemark.cli.state_export import export_store
from tidemark.client import Change, QueryFailed, QueryUnavailable, StateClient
from tidemark.errors import InvalidSettings
from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.queries import export
from tidemark.queries.catalog import Catalog
from tidemark.queries.endpoints import Endpoint
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.event_feed import EventFeed
from tidemark.queries.hosts import CopyState
from tidemark.queries.part_source import LiveSources
from tidemark.queries.position import ChangelogOffset, ReadBounds
from tidemark.queries.server_events import CHANGE, END, GONE, LOST, POSITION, SLOW, ServerEvent
from tidemark.queries.tls import require_usable, trusted
from tidemark.settings import Settings
from tidemark.stores.protocol import WHOLE

COUNTS = {b"k%03d" % n: n for n in range(300)} | {b"\xff\x00": 1, b"": 2}


@contextmanager
def asked(host, live: LiveSources | None = None, others=(), **settings):
    # No query of a test is slow by itself, however busy the machine is.
    used = Settings(**{"query_requests_per_second": 0, "query_timeout_ms": 60_000, **settings})
    with (
        served(api_of(host, used, others, live), used) as url,
        StateClient(APP, url=url, token="all", settings=used) as client,
    ):
        yield client


def contents(client: StateClient, task: str) -> list[dict]:
    with client.store("n").contents(task) as found:
        return [row for batch in found.batches for row in batch.to_pylist()]


def test_should_export_everything_at_one_position(monkeypatch):
    monkeypatch.setattr(export, "_PART_RECORDS", 10)
    found: dict[bytes, int] = {}
    with asked(counts_host(COUNTS)) as client:
        for task in client.store("n").tasks():
            with client.store("n").contents(task) as opened:
                assert opened.position.changelog_offset == 10
            found |= {row["key"]: row["value"]["n"] for row in contents(client, task)}
    assert found == COUNTS


def test_should_export_one_position_while_the_store_is_written_and_stop_when_it_is_closed(monkeypatch):
    monkeypatch.setattr(export, "_PART_RECORDS", 10)
    host = counts_host(COUNTS, tasks=1)
    (task, stores), store = next(iter(host.held.items())), Catalog.of(queried_plan()).store("n")
    made = export.TaskExport(host, task, store, ReadBounds(), 60_000)
    data = made.read()
    written = {(WHOLE, key): count_value(999_999) for key, _ in stores["n"].items(WHOLE)}
    fill(stores["n"], {**written, (WHOLE, b"new"): count_value(999_999)}, batch=2)
    while (part := made.read()) is not None:
        data += part
    rows = pa.ipc.open_stream(data).read_all().to_pylist()
    assert {row["key"]: row["value"]["n"] for row in rows} == COUNTS
    stopped = export.TaskExport(host, task, store, ReadBounds(), 60_000)
    stores["n"].close()
    with pytest.raises(StateUnavailable, match="was closed"):
        stopped.read()
    with pytest.raises(StateUnavailable, match="at_least is 99"):
        export.TaskExport(host, task, store, ReadBounds.of(None, None, f"{task}:99"), 60_000)


def test_should_write_a_file_that_duckdb_reads_and_that_knows_its_positions(tmp_path, capsys):
    file = tmp_path / "n.parquet"
    file.write_text("an old one")
    with asked(counts_host(COUNTS)) as client:
        export_store(client.store("n"), file, Output(as_json=True))
    shown = json.loads(capsys.readouterr().out)
    assert (shown["records"], shown["position"]) == (len(COUNTS), "0_0:10,0_1:10,0_2:10")
    rows = duckdb.sql(f"SELECT task, key, value.n AS n FROM '{file}'").fetchall()
    assert {key: n for _, key, n in rows} == COUNTS
    assert {task for task, _, _ in rows} == {"0_0", "0_1", "0_2"}
    facts = json.loads(pq.read_metadata(file).metadata[b"tidemark"])
    assert (facts["store"], facts["position"]) == ("n", shown["position"])
    assert [path.name for path in tmp_path.iterdir()] == ["n.parquet"]


def test_should_write_the_file_that_a_link_names(tmp_path):
    (tmp_path / "link").symlink_to("n.parquet")
    with asked(counts_host(COUNTS)) as client:
        export_store(client.store("n"), tmp_path / "link", Output(as_json=True))
    assert (tmp_path / "link").is_symlink()
    assert pq.read_table(tmp_path / "n.parquet").num_rows == len(COUNTS)


@pytest.mark.parametrize("where", [".", "/", "pipe"])
def test_should_refuse_to_replace_what_is_not_a_file_before_it_reads(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(typer.BadParameter, match="is not a file"):
        export_store(None, Path(where), Output(as_json=True))
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert Path("pipe").is_fifo()


def test_should_write_an_empty_store_and_windows(tmp_path):
    with asked(counts_host({})) as client:
        export_store(client.store("w"), tmp_path / "w.parquet", Output(as_json=True))
    table = pq.read_table(tmp_path / "w.parquet")
    assert (table.num_rows, table.column_names) == (0, ["task", "key", "window_start_ms", "window_end_ms", "value"])


def test_should_leave_the_old_file_when_an_export_breaks_off(tmp_path, monkeypatch):
    reads = export.TaskExport.read

    def breaks(made: export.TaskExport) -> bytes | None:
        if made._after is not None:
            raise StateUnavailable("the store was closed", "ask again")
        return reads(made)

    host = counts_host(COUNTS)
    file = tmp_path / "n.parquet"
    file.write_text("an old one")
    with asked(host) as client:
        with monkeypatch.context() as broken:
            broken.setattr(export, "_PART_RECORDS", 10)
            broken.setattr(export.TaskExport, "read", breaks)
            with pytest.raises(QueryUnavailable, match="does not answer"):
                export_store(client.store("n"), file, Output(as_json=True))
        del host.held[TaskId(0, 1)]
        with pytest.raises(QueryUnavailable, match="no process can answer for task 0_1"):
            export_store(client.store("n"), file, Output(as_json=True))
    assert file.read_text() == "an old one"
    assert [path.name for path in tmp_path.iterdir()] == ["n.parquet"]


def change(key: str, value: int | None, offset: int) -> bytes:
    body = {"key": key, "value": None if value is None else {"n": value}, "position": f"0_1:{offset}"}
    return ServerEvent(CHANGE, json.dumps(body), f"0_0:4,0_1:{offset}").to_bytes()


def test_should_continue_a_watch_where_it_was_when_the_connection_ends():
    begins = ServerEvent(POSITION, "{}", "0_0:4,0_1:7").to_bytes()
    changes = ScriptedChanges([[begins, change("a", 1, 8)], [], [change("a", None, 9)], [change("b", 3, 10)]])
    with asked(counts_host({}), LiveSources(changes, None)) as client:
        seen = list(islice(client.store("n").watch(), 3))
        assert seen == [
            Change(b"a", {"n": 1}, None, None, "0_1:8", "0_0:4,0_1:8"),
            Change(b"a", None, None, None, "0_1:9", "0_0:4,0_1:9"),
            Change(b"b", {"n": 3}, None, None, "0_1:10", "0_0:4,0_1:10"),
        ]
        first, _, third, fourth = changes.asked[:4]
        assert first == ("n", [TaskId(0, n) for n in range(3)], None, {})
        # A watch that lost its connection before the first change continues from where it began.
        assert third[3] == {TaskId(0, 0): ChangelogOffset(4), TaskId(0, 1): ChangelogOffset(8)}
        assert fourth[3][TaskId(0, 1)] == ChangelogOffset(9)
        changes.scripts = [[change("ä", 1, 2)]]
        (only,) = islice(client.store("n", max_lag_ms=5).watch("ä", after="0_1:1.3"), 1)
        assert only.key == "ä".encode()
        name, tasks, key, after = changes.asked[-1]
        assert (name, len(tasks), key, after) == ("n", 1, "ä".encode(), {TaskId(0, 1): ChangelogOffset(1, 3)})


def test_should_end_a_watch_whose_changes_no_longer_exist():
    gone = ServerEvent(GONE, json.dumps({"why": "the changes after 0_0:5 cannot be read"})).to_bytes()
    with asked(counts_host({}), LiveSources(ScriptedChanges([[gone]]), None)) as client:
        with pytest.raises(QueryFailed, match="after 0_0:5 cannot be read: query the store again"):
            next(client.store("n").watch())
        with pytest.raises(QueryFailed, match="no store other"):
            next(client.store("other").watch())
        with pytest.raises(QueryFailed, match="no position"):
            next(client.store("n").watch(after="x"))
        with pytest.raises(QueryFailed, match="batch of a commit record"):
            next(client.store("n").watch(after="0_0@4"))


def test_should_pause_between_streams_that_end_at_once_and_lose_patience(monkeypatch):
    pauses: list[float] = []
    # Time passes only in the pauses: on a busy machine the first stream may take longer than the patience lasts.
    passing = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("tidemark.client.time", passing)
    gone = ServerEvent(GONE, json.dumps({"why": "it was asked without a pause"})).to_bytes()
    end = ServerEvent(END, json.dumps({"why": "this process ends"}), "0_0:4").to_bytes()
    changes = ScriptedChanges([*([[end]] * 20), [gone]])
    with (
        asked(counts_host({}), LiveSources(changes, None)) as client,
        pytest.raises(QueryUnavailable, match="ends again and again"),
    ):
        next(client.store("n").watch(patience_s=2.0))
    assert pauses == [0.5] * 5
    assert len(changes.asked) == 6


class EndlessChanges(ScriptedChanges):
    """Every watch sends comments for ever."""

    def watch(self, store, tasks, key, after):
        class Endless(ScriptedParts):
            def read(self) -> bytes:
                return b": more\n\n" * 20_000

        return Endless(self, [])


def test_should_close_the_watch_of_a_client_that_stops_reading_and_answer_the_others():
    changes = EndlessChanges()
    with asked(counts_host({b"a": 1}), LiveSources(changes, None), query_stall_ms=200, query_streams=1) as client:
        host, _, port = client._address().removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as stalled:
            stalled.sendall(b"GET /v1/stores/n/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all\r\n\r\n")
            assert wait_until(lambda: changes.closed == 1, 60)
            assert client.store("n").get("a").value == {"n": 1}
            # Its slot is free, too, although it has still read nothing.
            with client._stream("/v1/stores/n/watch", {}) as answer:
                assert next(answer.iter_lines()) == ": more"


class SlowlyOpenedChanges(ScriptedChanges):
    """Opens no watch before `may_open` is set, as while brokers are away."""

    def __init__(self) -> None:
        super().__init__()
        self.opening, self.may_open = threading.Event(), threading.Event()

    def watch(self, store, tasks, key, after):
        self.opening.set()
        self.may_open.wait(60)
        return super().watch(store, tasks, key, after)


def test_should_answer_queries_while_watches_are_being_opened():
    changes = SlowlyOpenedChanges()
    live = LiveSources(changes, None)
    with asked(counts_host({b"a": 1}), live, query_threads=1, query_timeout_ms=15_000) as client:

        def watch() -> None:
            with client._stream("/v1/stores/n/watch", {}) as answer:
                answer.read()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            assert changes.opening.wait(60)
            assert client.store("n").get("a").value == {"n": 1}
        finally:
            changes.may_open.set()
            thread.join(60)
    assert changes.closed == 1


def event(new: str, old: str) -> str:
    return json.dumps({"kind": "state", "application_id": APP, "topology_version": "7", "instance": 0, "time_ms": 5,
                       "body": {"new": new, "old": old}})  # fmt: skip


def test_should_follow_the_states_of_an_instance():
    feed = EventFeed("9")
    feed.add("state", event("CREATED", "CREATED"))
    feed.add("state", event("REBALANCING", "CREATED"))
    with asked(counts_host({}), LiveSources(ScriptedChanges(), feed)) as client:
        following = client.events()
        first, second = islice(following, 2)
        assert [first.body["new"], second.body["new"]] == ["CREATED", "REBALANCING"]
        feed.add("state", event("RUNNING", "REBALANCING"))
        third = next(following)
        assert (third.kind, third.body["new"], third.time_ms, third.id) == ("state", "RUNNING", 5, "9-3")
        assert next(client.events(after=second.id)) == third


def test_should_say_that_events_were_lost_or_not_read_in_time(monkeypatch):
    lost, slow = ServerEvent(LOST, '{"events": 6}'), ServerEvent(SLOW, '{"why": "nothing was read for 5 s"}')
    monkeypatch.setattr("tidemark.client._server_events", lambda _: iter([lost, slow]))
    with asked(counts_host({}), LiveSources(ScriptedChanges(), EventFeed("9"))) as client:
        following = client.events()
        missed = next(following)
        assert (missed.kind, missed.body, missed.id) == (LOST, {"events": 6}, "")
        with pytest.raises(QueryUnavailable, match="nothing was read for 5 s"):
            next(following)


def test_should_not_show_events_to_everybody_and_say_that_a_standby_has_none():
    live = LiveSources(ScriptedChanges(), EventFeed("9"))
    host = counts_host({}, state=CopyState.STANDBY)
    assert "scope read" in problem(http_client(host, token="one", live=live).get("/v1/events"), 403)["remedy"]
    assert "is a standby" in problem(http_client(host).get("/v1/events"), 404)["detail"]


def test_should_answer_over_tls_to_those_who_trust_its_authority(tmp_path):
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    pem = authority.signed("server")
    tls = {"query_tls_certificate": str(pem), "query_tls_ca": str(authority.file)}
    with asked(counts_host({b"a": 5}), **tls) as client:
        assert client.store("n").get("a").value == {"n": 5}
        url = client._address()
        assert url.startswith("https://")
        # Another process passes a query and an export on to it, over TLS as well.
        other_process = Endpoint("1", url, dict.fromkeys(ALL_TASKS, CopyState.ACTIVE))
        with asked(counts_host({}, tasks=0), others=[other_process], **tls) as empty:
            assert empty.store("n").get("a").value == {"n": 5}
            rows = [row for task in empty.store("n").tasks() for row in contents(empty, task)]
            assert [(row["key"], row["value"]) for row in rows] == [(b"a", {"n": 5})]
        for distrusts in ({"query_tls_ca": str(other.file)}, {}):
            with (
                StateClient(APP, url=url, token="all", settings=Settings(**distrusts)) as stranger,
                pytest.raises(QueryUnavailable, match="CERTIFICATE_VERIFY_FAILED"),
            ):
                stranger.stores()


def test_should_name_a_certificate_that_cannot_be_used(tmp_path):
    pem = Authority(tmp_path).signed("server")
    require_usable(Settings(query_tls_certificate=str(pem)))
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    other.chmod(0o600)
    for settings in (
        {"query_tls_certificate": str(tmp_path / "missing.pem")},
        {"query_tls_certificate": str(pem), "query_tls_key": str(other)},
        {"query_tls_certificate": str(other)},
    ):
        with pytest.raises(InvalidSettings, match=r"query_tls_certificate: .* cannot be used"):
            require_usable(Settings(**settings))
    with pytest.raises(InvalidSettings, match="set query_tls_certificate, too"):
        require_usable(Settings(query_tls_key=str(pem)))
    with pytest.raises(InvalidSettings, match="query_tls_ca"):
        trusted(Settings(query_tls_ca=str(other)))
    pem.chmod(0o604)
    with pytest.raises(InvalidSettings, match="chmod 600"):
        require_usable(Settings(query_tls_certificate=str(pem)))


def test_should_verify_with_the_usual_authorities_and_read_them_once():
    usual = trusted(Settings())
    assert usual.check_hostname
    assert usual.verify_mode is ssl.CERT_REQUIRED
    assert usual.cert_store_stats()["x509_ca"] > 0
    assert trusted(Settings()) is usual

"""Every kind of store of a real instance through the Python client: drawn keys, during commits, a crash and a restart."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.support.counting import AT_MS, CountingApp, CountingSource, Crash, in_thread
from tests.support.partials import PARTIAL_HEAD
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.client import Change, QueryUnavailable, Result, StateClient, StoreClient
from tidemark.instance.assembly import make_instance
from tidemark.processes import wait_until
from tidemark.tasks.partials import Partial, Status
from tidemark.topology.builder import Topology
from tidemark.topology.windows import session, tumbling

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MINUTE, GAP = 60_000, 30_000
BASE_MS = AT_MS // MINUTE * MINUTE - 10 * MINUTE
SEED = 19


def in_every_kind(name: str) -> Topology:
    topology = Topology(name)
    stream = topology.stream(f"{name}-in", schema="id STRING", key="id").group_by_key()
    stream.count(name="n", store="n").to(f"{name}-out")
    stream.windowed_by(tumbling("1m")).count(name="n", store="w", retention="2h").to(f"{name}-out-w")
    stream.windowed_by(session("30s")).count(name="n", store="s", retention="2h").to(f"{name}-out-s")
    return topology


class EveryKindSource(CountingSource):
    """Hands over one table for each of the three stores. A record's timestamp is its time."""

    def counted(self, messages):
        rows = [(m.partition(), m.key().decode(), m.timestamp()[1], m.offset()) for m in messages]
        return [
            _partials((p, key, None, at, offset) for p, key, at, offset in rows),
            _partials((p, key, at // MINUTE * MINUTE, at, offset) for p, key, at, offset in rows),
            _partials((p, key, at, at, offset) for p, key, at, offset in rows),
        ]

    def next(self, timeout_s):
        batch = super().next(timeout_s)
        return None if batch is None else replace(batch, pipelines=batch.pipelines[0])


def _partials(rows) -> pa.Table:
    """Partial counts by partition, key and window; without windows the window is None."""
    grouped: dict[tuple[int, str, int | None], list[tuple[int, int]]] = {}
    for partition, key, window, at, offset in rows:
        grouped.setdefault((partition, key, window), []).append((at, offset))
    made = [
        (p, Status.GOOD, len(of), max(of)[0], max(offset for _, offset in of), key, window, len(of))
        for (p, key, window), of in grouped.items()
    ]
    table = pa.table(dict(zip((*PARTIAL_HEAD, Partial.WINDOW, "n"), map(list, zip(*made, strict=True)), strict=True)))
    return table.drop_columns([Partial.WINDOW]) if made[0][6] is None else table


class Fed:
    """What was fed, and what each store must hold of it."""

    def __init__(self, app: CountingApp, keys: list[str]) -> None:
        self._app, self._keys, self._random = app, keys, random.Random(SEED)
        self._at_ms = BASE_MS
        self.times: dict[str, list[int]] = {}

    def feed(self, records: int) -> None:
        """Times of one key are a few seconds apart, or so far that another session begins."""
        producer = Producer(
            {"bootstrap.servers": self._app.settings.bootstrap_servers, "partitioner": "murmur2_random"}
        )
        for _ in range(records):
            key = self._random.choice(self._keys)
            self._at_ms += self._random.choice((0, 500, 2_000))
            self.times.setdefault(key, []).append(self._at_ms)
            producer.produce(f"{self._app.name}-in", b"{}", key.encode(), timestamp=self._at_ms)
        assert producer.flush(60) == 0

    def expected(self) -> dict[str, dict]:
        counts = {key: len(times) for key, times in self.times.items()}
        windows = Counter((key, at // MINUTE * MINUTE) for key, times in self.times.items() for at in times)
        sessions: dict[tuple[str, int, int], int] = {}
        for key, times in self.times.items():
            spans: list[list[int]] = []
            for at in sorted(times):
                if spans and at - spans[-1][-1] <= GAP:
                    spans[-1].append(at)
                else:
                    spans.append([at])
            sessions |= {(key, span[0], span[-1]): len(span) for span in spans}
        return {"n": counts, "w": dict(windows), "s": sessions}


def held(client: StateClient) -> dict[str, dict]:
    """Everything that the three stores hold."""
    n, w, s = (client.store(name) for name in "nws")
    return {
        "n": {entry.text: entry.value["n"] for entry in n.range()},
        "w": {(entry.text, entry.window_start_ms): entry.value["n"] for entry in w.windows()},
        "s": {(entry.text, entry.window_start_ms, entry.window_end_ms): entry.value["n"] for entry in s.sessions()},
    }


def or_nothing(ask):
    """The answer, or None if nobody answers; any other failure is raised."""
    try:
        return ask()
    except QueryUnavailable:
        return None


class Reader(threading.Thread):
    """Reads keys, windows and sessions again and again: a count never falls, and is never more than was fed."""

    def __init__(self, client: StateClient, fed: Fed, keys: list[str]) -> None:
        super().__init__(daemon=True)
        self._client, self._fed, self._keys = client, fed, keys
        self._highest: Counter[tuple] = Counter()
        self.stop = threading.Event()
        self.answered = 0
        self.failures: list[BaseException] = []

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                for key in self._keys:
                    self._look(key)
        except BaseException as failure:
            self.failures.append(failure)

    def _look(self, key: str) -> None:
        n, w, s = (self._client.store(name) for name in "nws")
        entry = or_nothing(lambda: n.get_many([key]))
        windows = or_nothing(lambda: w.windows(key, from_ms=BASE_MS))
        sessions = or_nothing(lambda: s.sessions(key))
        # Whatever was committed by then was fed before.
        most = len(self._fed.times.get(key, []))
        self._require(("n", key), entry, most)
        self._require(("w", key), windows, most)
        self._require(("s", key), sessions, most)

    def _require(self, place: tuple, found: Result | None, most: int) -> None:
        if found is None:
            return
        total = sum(entry.value["n"] for entry in found)
        assert self._highest[place] <= total <= most, (place, self._highest[place], total, most)
        self._highest[place] = total
        self.answered += 1


class Watcher(threading.Thread):
    """Follows all changes of the store `n`."""

    def __init__(self, store: StoreClient) -> None:
        super().__init__(daemon=True)
        self._changes = store.watch(after=store.count().position)
        self.seen: list[Change] = []
        self.may_end = threading.Event()

    def run(self) -> None:
        try:
            for change in self._changes:
                self.seen.append(change)
        except QueryUnavailable:
            # It goes on looking for an instance for a minute after the last one has ended.
            if not self.may_end.is_set():
                raise

    def values(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for change in list(self.seen):
            found.setdefault(change.key.decode(), []).append(change.value["n"])
        return found


def test_should_show_only_committed_contents_of_every_store_through_a_crash_and_a_restart(
    settings, admin, unique, tmp_path, monkeypatch
):
    app = CountingApp(
        settings.model_copy(update={"query_port": 0, "query_timeout_ms": 30_000}),
        admin,
        unique("client"),
        topology=in_every_kind,
        source=EveryKindSource,
    )
    drawn = random.Random(SEED)
    keys = [
        "",
        "ä☃𝄞",
        "\x00",
        "a",
        "ab",
        "a b/?&=%",
        "k" * 100_000,
        *(chr(drawn.randrange(0x20, 0xD7FF)) for _ in range(20)),
    ]
    fed = Fed(app, keys)
    reached, crashes = threading.Event(), threading.Event()
    blocks, may_crash = threading.Event(), threading.Event()

    def probe(point: str) -> None:
        # Outputs, changelogs, commit record and offsets are written, and the transaction is open.
        if point == "5-offsets" and blocks.is_set() and not crashes.is_set():
            reached.set()
            assert may_crash.wait(120)
            crashes.set()
            raise Crash

    def started(cleanup: ExitStack) -> list[BaseException]:
        instance = make_instance(app.plan, app.settings, 0, "counting", probe)
        source = EveryKindSource(app.settings.bootstrap_servers, f"{app.name}-in", threading.Event())
        return cleanup.enter_context(in_thread(instance, source))

    with ExitStack() as everything:
        client = everything.enter_context(StateClient(app.name, settings=app.settings))
        fed.feed(300)
        with ExitStack() as first:
            failed = started(first)
            first.callback(may_crash.set)
            assert wait_until(lambda: or_nothing(lambda: held(client)) == fed.expected(), 60)
            before = fed.expected()
            watcher = Watcher(client.store("n"))
            watcher.start()
            states = [event.body["new"] for event in islice(client.events(), 4) if event.kind == "state"]
            assert states[:2] == ["CREATED", "REBALANCING"]
            reader = Reader(client, fed, keys[:8])
            everything.callback(reader.stop.set)
            reader.start()
            blocks.set()
            fed.feed(100)
            assert reached.wait(60)
            assert held(client) == before
            assert watcher.seen == []
            may_crash.set()
            assert wait_until(lambda: bool(failed), 60)
        assert isinstance(failed[0], Crash)
        with ExitStack() as second:
            again = started(second)
            assert wait_until(lambda: or_nothing(lambda: held(client)) == fed.expected(), 90)
            fed.feed(200)
            assert wait_until(lambda: or_nothing(lambda: held(client)) == fed.expected(), 60)
            for key in keys:
                found = client.store("n").get(key)
                assert (None if found is None else found.value["n"]) == (len(fed.times.get(key, [])) or None)
            last = {key: count for key, count in fed.expected()["n"].items() if count != before["n"].get(key)}
            assert wait_until(lambda: {key: values[-1] for key, values in watcher.values().items()} == last, 60)
            for key, values in watcher.values().items():
                assert values == sorted(set(values))
                assert values[0] > before["n"].get(key, 0)
            reader.stop.set()
            reader.join(60)
            assert reader.failures == []
            assert reader.answered > 0
            module = app.for_commands(tmp_path, monkeypatch)
            (tmp_path / f"{module}.py").write_text(
                "from tests.integration.queries.test_client_of_an_instance import in_every_kind\n"
                f"def topology():\n    return in_every_kind({app.name!r})\n"
            )
            file = tmp_path / "n.parquet"
            shown = CliRunner().invoke(build(), ["state", "export", module, "n", "--parquet", str(file), "--json"])
            assert shown.exit_code == 0, shown.output
            rows = duckdb.sql(f"SELECT key, value.n FROM '{file}'").fetchall()
            assert {key.decode(): n for key, n in rows} == fed.expected()["n"]
            assert json.loads(shown.stdout)["position"]
            (change,) = islice(client.store("n").watch(after=watcher.seen[0].resume_position), 1)
            # Partitions have no order between each other.
            assert change.position in {later.position for later in watcher.seen[1:]}
            shown = CliRunner().invoke(
                build(), ["state", "watch", module, "n", "--after", watcher.seen[0].resume_position, "--limit", "1"]
            )
            assert shown.exit_code == 0, shown.output
            assert "n=" in shown.stdout
            watcher.may_end.set()
        assert again == []

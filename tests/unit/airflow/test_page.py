"""The Streams page and the topology modules that are deployed while the API server runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import topologies
from tidemark.overview.pages import Links
from tidemark.overview.rights import Rights
from tidemark.settings import Settings
from tidemark.topology_loader import forget_modules
from tidemark_airflow import page
from tidemark_airflow.page import StreamsView, Visitor, tab

_SOURCE = """
from tidemark.topology.builder import Topology
from topologies import _helper
from topologies._helper import VERSION
def topology():
    assert VERSION == _helper.VERSION
    topology = Topology({name!r}, version=VERSION)
    topology.stream("x", schema="a STRING", key="a").filter("a != ''").to("y")
    return topology
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in sys.modules if name.startswith("topologies.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(topologies, name.split(".")[1], raising=False)
    monkeypatch.setattr(topologies, "__path__", [str(tmp_path)])
    monkeypatch.setattr(page, "_MODULES_S", 0.0)
    (tmp_path / "_helper.py").write_text("VERSION = '1'\n")
    (tmp_path / "first.py").write_text(_SOURCE.format(name="first"))
    yield tmp_path
    forget_modules()


def versions(view: StreamsView) -> dict[str, str]:
    view.follow_modules()
    return {name: plan.version for name, plan in view.topologies.plans.items()}


def shown(view: StreamsView) -> list[str]:
    return [app.topology for app in view._sampler.overview({}).applications]


def test_should_follow_modules_that_are_added_changed_corrected_and_removed(folder: Path, tmp_path: Path) -> None:
    view = StreamsView(Settings.load(var_dir=tmp_path / "var", bootstrap_servers="127.0.0.1:1"))
    assert versions(view) == {"first": "1"}
    (folder / "second.py").write_text("1 +")
    assert versions(view) == {"first": "1"}
    assert list(view.topologies.faults) == ["second"]
    (folder / "second.py").write_text(_SOURCE.format(name="second"))
    assert versions(view) == {"first": "1", "second": "1"}
    assert view.topologies.faults == {}
    assert shown(view) == ["first", "second"]
    (folder / "_helper.py").write_text("VERSION = '22'\n")
    assert versions(view) == {"first": "22", "second": "22"}
    (folder / "first.py").unlink()
    assert versions(view) == {"second": "22"}
    assert shown(view) == ["second"]


def test_should_load_nothing_again_while_no_module_changes(folder: Path, tmp_path: Path) -> None:
    view = StreamsView(Settings.load(var_dir=tmp_path / "var"))
    before = view.topologies
    view.follow_modules()
    assert view.topologies is before


def test_the_updates_of_a_stream_that_is_removed_should_end_and_say_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "dags_that_are_on", lambda topologies: {})
    monkeypatch.setattr(page, "_RENDERED_S", 0.0)
    monkeypatch.setattr(page, "_UPDATE_S", 0.0)
    view = StreamsView(Settings.load(var_dir=tmp_path / "var", bootstrap_servers="127.0.0.1:1"))

    async def events() -> list[str]:
        sent = []
        who = Visitor(Rights(frozenset({"stream__first"})), Links("", "/streams"))
        async for event in page._updates(lambda: view.sections("first", who)):
            sent.append(event.split("\n")[0])
            if sent[-1] == "event: sections":
                (folder / "first.py").unlink(missing_ok=True)
                view.follow_modules()
        return sent

    assert asyncio.run(events()) == ["retry: 1000", "event: sections", "event: gone"]


def scraped(view: StreamsView) -> list[str]:
    return view.metrics(Rights(frozenset(view.dag_ids))).decode().splitlines()


@pytest.mark.parametrize(
    ("dag_id", "title"),
    [
        ("stream__first", "This stream is not shown"),
        ("stream__third", "This stream is not shown"),
        ("lag_check", "This DAG keeps no stream running"),
    ],
)
def test_the_tab_should_not_say_whether_there_is_a_stream_that_may_not_be_seen(
    folder: Path, tmp_path: Path, dag_id: str, title: str
) -> None:
    view = StreamsView(Settings.load(var_dir=tmp_path / "var"))
    who = Visitor(Rights(frozenset(), frozenset(), frozenset()), Links("", "/streams"))
    assert title in bytes(tab(dag_id, view, who).body).decode()


def test_the_metrics_should_count_the_topologies_that_do_not_load(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "dags_that_are_on", lambda topologies: {})
    monkeypatch.setattr(page, "dags_of", lambda dag_ids: [])
    view = StreamsView(Settings.load(var_dir=tmp_path / "var", bootstrap_servers="127.0.0.1:1"))
    assert "tidemark_topologies_unloadable 0.0" in scraped(view)
    (folder / "second.py").write_text("1 +")
    view.follow_modules()
    assert "tidemark_topologies_unloadable 1.0" in scraped(view)


def test_the_metrics_should_not_count_a_copy_whose_application_has_another_module(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is known of the application, though the copy itself has no stream."""
    monkeypatch.setattr(page, "dags_that_are_on", lambda topologies: {})
    monkeypatch.setattr(page, "dags_of", lambda dag_ids: [])
    (folder / "first_next.py").write_text((folder / "first.py").read_text())
    view = StreamsView(Settings.load(var_dir=tmp_path / "var", bootstrap_servers="127.0.0.1:1"))
    assert "tidemark_topologies_unloadable 0.0" in scraped(view)
    for readable in (frozenset({"stream__first_next"}), frozenset[str]()):
        sections = view.sections(None, Visitor(Rights(readable), Links("", "/streams")))
        assert sections is not None
        assert ("first_next" in sections["summary"]) is bool(readable)


def test_a_topology_that_does_not_load_should_be_shown_to_those_who_may_read_its_dag(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "dags_that_are_on", lambda topologies: {})
    (folder / "second.py").write_text("1 +")
    (folder / "third.py").write_text("1 +")
    view = StreamsView(Settings.load(var_dir=tmp_path / "var", bootstrap_servers="127.0.0.1:1"))
    assert {"stream__first", "stream__second", "stream__third"} < set(view.dag_ids)
    for readable in ({"stream__second"}, {"stream__first"}, set[str]()):
        who = Visitor(Rights(frozenset(readable)), Links("", "/streams"))
        sections = view.sections(None, who)
        assert sections is not None
        named = {f"stream__{name}" for name in ("second", "third") if name in sections["summary"]}
        assert named == readable - {"stream__first"}

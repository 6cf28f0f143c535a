"""Leftovers of all applications are found by the module that has the application, not by a copy of that module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import topologies
from tidemark.operations.leftovers import all_leftovers
from tidemark.settings import Settings
from tidemark.stores.directory import STORES_FOLDER

# Its plan has one sub-topology, that of `clicks` has two.
_COPY = """
from tidemark.topology.builder import Topology
def topology():
    topology = Topology("clicks")
    topology.stream("x", schema="a STRING", key="a").filter("a != ''").to("y")
    return topology
"""


def test_should_not_take_the_state_of_an_application_for_leftovers_because_a_copy_of_its_module_has_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "topologies"
    folder.mkdir()
    (folder / "clicks_next.py").write_text(_COPY)
    monkeypatch.delitem(sys.modules, "topologies.clicks_next", raising=False)
    monkeypatch.setattr(topologies, "__path__", [*topologies.__path__, str(folder)])
    settings = Settings.load(
        bootstrap_servers="127.0.0.1:1", var_dir=tmp_path / "var", state_dir=tmp_path / "var" / "state"
    )
    (settings.state_dir / "0" / "clicks" / "1_0" / STORES_FOLDER / "page-clicks").mkdir(parents=True)
    assert all_leftovers(settings) == []

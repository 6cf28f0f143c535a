"""The modules in `docs/topology.md` load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidemark.topology.builder import Topology

PAGE = Path(__file__).parents[3] / "docs" / "topology.md"
MODULES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("source", MODULES)
def test_should_plan_every_module_in_the_docs(source: str) -> None:
    names: dict[str, Any] = {}
    exec(source, names)
    built = names["topology"]()
    assert isinstance(built, Topology)
    assert built.describe()


def test_should_load_the_example_of_the_readme_beside_the_topologies_of_the_repository(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (PAGE.parents[1] / "README.md").read_text(), re.DOTALL)
    (tmp_path / "first.py").write_text(source)
    program = (
        "from tidemark.topology_loader import load_all\n"
        "loaded = load_all()\n"
        "print([str(error) for error in loaded.values() if isinstance(error, Exception)])\n"
        "print(loaded['first'].describe())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TIDEMARK_TOPOLOGY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    faults, _, description = found.stdout.partition("\n")
    assert faults == "[]"
    assert "stores: [pulse-counts]" in description


def test_should_find_examples_in_the_docs() -> None:
    assert len(MODULES) == 6

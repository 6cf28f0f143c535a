"""The modules in `docs/topology.md` load."""

from __future__ import annotations

import re
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


def test_should_describe_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (PAGE.parents[1] / "README.md").read_text(), re.DOTALL)
    exec(source, {})
    assert "stores: [pulse-counts]" in capsys.readouterr().out


def test_should_find_examples_in_the_docs() -> None:
    assert len(MODULES) == 3

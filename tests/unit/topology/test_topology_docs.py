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
def test_a_module_in_the_docs_should_have_a_plan(source: str) -> None:
    names: dict[str, Any] = {}
    exec(source, names)
    built = names["topology"]()
    assert isinstance(built, Topology)
    assert built.describe()


def test_the_readmes_example_should_describe_itself(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (PAGE.parents[1] / "README.md").read_text(), re.DOTALL)
    exec(source, {})
    assert "stores: [pulse-counts]" in capsys.readouterr().out


def test_the_docs_should_have_examples() -> None:
    assert len(MODULES) == 3

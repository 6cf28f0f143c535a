"""`tidemark describe`, as text and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli import main
from tidemark.errors import TidemarkError
from tidemark.topology.drawing.layout import picture
from tidemark.topology_loader import load


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main.build(), ["describe", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_should_print_the_topology_with_describe() -> None:
    assert run("shopping") == load("shopping").describe() + "\n"


@pytest.mark.parametrize("name", ["clicks", "patient_monitoring", "shopping"])
def test_should_draw_the_topology_into_a_file_with_describe(tmp_path: Path, name: str) -> None:
    file = tmp_path / "topology.svg"
    assert str(file) in run(name, "--svg", str(file)).replace("\n", "")
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    assert file.read_text(encoding="utf-8") == picture(load(name).plan())


def test_should_name_the_file_that_describe_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(TidemarkError, match=r"cannot write .*nowhere.*a folder that exists"):
        run("shopping", "--svg", str(tmp_path / "nowhere" / "topology.svg"))

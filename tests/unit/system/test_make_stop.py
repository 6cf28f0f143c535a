"""What `make stop` runs: only the command that ends the stack, however old the environment is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).resolve().parents[3] / "Makefile"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make_stop(folder: Path) -> str:
    """Run it in a folder without the script that sets an environment up, so that it fails if it needs that."""
    return subprocess.run(
        ["make", "--no-print-directory", "-f", MAKEFILE, "stop"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_should_end_the_stack_without_an_update_of_its_packages(tmp_path: Path) -> None:
    command = tmp_path / ".venv" / "bin" / "tidemark"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho ran $*\n")
    command.chmod(0o755)
    assert make_stop(tmp_path) == "ran down\n"


def test_should_report_that_nothing_was_set_up(tmp_path: Path) -> None:
    assert make_stop(tmp_path) == "nothing was set up here, so nothing runs\n"

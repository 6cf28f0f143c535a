"""The build of the image, without Docker: `.ci/setup` in a folder that holds only what the Dockerfile has copied by then."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from tidemark.settings import project_root

JAVA_CHECK = "import sys; sys.exit('the check of Java ran')"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder in which the Dockerfile runs `.ci/setup`, with an environment, and an installer that installs nothing."""
    before = (project_root() / "Dockerfile").read_text().partition("bash .ci/setup")[0]
    for names in re.findall(r"^COPY (.+) \S+$", before, re.MULTILINE):
        for name in names.split():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(project_root() / name, tmp_path / name)
    venv.create(tmp_path / ".venv")
    installer = tmp_path / ".tools" / "bin" / "uv"
    installer.parent.mkdir(parents=True)
    installer.write_text("#!/bin/sh\n")
    installer.chmod(0o755)
    return tmp_path


def set_up(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ["bash", ".ci/setup"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_should_set_up_an_image_before_its_sources_are_copied(copied: Path) -> None:
    assert not (copied / "include").exists()
    done = set_up(copied)
    assert done.returncode == 0, done.stderr
    assert (copied / ".venv" / ".ready").exists()


def test_should_check_java_in_a_checkout(copied: Path) -> None:
    module = copied / "include" / "tidemark" / "kafka" / "java.py"
    module.parent.mkdir(parents=True)
    module.write_text(JAVA_CHECK)
    for folder in ("plugins", "dags", "spark_jobs"):
        (copied / folder).mkdir()
    done = set_up(copied)
    assert "the check of Java ran" in done.stderr
    assert done.returncode == 1
    assert not (copied / ".venv" / ".ready").exists()

"""Completion in a real bash, by the function that `tidemark --show-completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.completion import get_completion_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `tidemark` on a PATH, as `.venv/bin` has one."""
    made = tmp_path_factory.mktemp("bin") / "tidemark"
    made.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidemark.cli.main "$@"\n')
    made.chmod(0o755)
    return made


def completed(program: Path, line: str) -> list[str]:
    """Press the tabulator at the end of the line."""
    words = line.split(" ")
    script = get_completion_script(prog_name="tidemark", complete_var="_TIDEMARK_COMPLETE", shell="bash")
    asked = (
        f"{script}\nCOMP_WORDS=({' '.join(word or repr('') for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        f'_tidemark_completion tidemark\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([BASH, "-c", asked], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tidemark res", ["restore", "rescale", "reset"]),
        ("tidemark restore ", ["plan", "run", "status", "abort", "rollback"]),
        ("tidemark restore ro", ["rollback"]),
        ("tidemark restore plan sho", ["shopping"]),
        ("tidemark restore plan --from s", ["standby", "savepoint", "source"]),
        ("tidemark reset plan shopping --state ", ["keep", "empty"]),
        ("tidemark lag shopping --js", ["--json"]),
    ],
)
def test_bash_should_offer_what_may_follow(program: Path, line: str, offered: list[str]) -> None:
    assert completed(program, line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_of_the_users_shell_should_be_printed(program: Path, shell: str, tmp_path: Path) -> None:
    # The shell is recognised by the name of the parent process, so a bash of that name is one as well.
    called_by = tmp_path / shell
    shutil.copy(str(BASH), called_by)
    done = subprocess.run(
        [called_by, "-c", f"{program} --show-completion; exit $?"], capture_output=True, text=True, check=True
    )
    assert "_TIDEMARK_COMPLETE=complete_" + shell in done.stdout
    assert ("#compdef tidemark" in done.stdout) is (shell == "zsh")

"""Java programs of tests are compiled by one process at a time, because each worker of a test run may want them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.system.peers import java

from tidemark.processes import wait_until
from tidemark.settings import Settings


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each call of a compiler, which works until there is a file `end` beside it."""
    called, compiler = tmp_path / "calls", tmp_path / "javac"
    compiler.write_text(
        f'#!/bin/sh\necho compiles >> "{called}"\nwhile [ ! -e "{tmp_path}/end" ]; do sleep 0.05; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(java, "compiler", lambda: compiler)
    monkeypatch.setattr(java, "jars", SimpleNamespace(ensure=lambda *_: []))
    return called


def test_should_compile_once_when_several_want_the_same_classes(calls: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "Program.java").write_text("class Program {}")

    def program() -> list[str]:
        return java.program(Settings.load(), "Program", folder=sources)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(program)
        assert wait_until(calls.exists, 60)
        second = pool.submit(program)
        meanwhile = wait_until(lambda: second.done() or calls.read_text().count("compiles") > 1, 0.5)
        (tmp_path / "end").touch()
        assert first.result(60) == second.result(60) == program()
    assert not meanwhile, "it did not wait for the one that compiles"
    assert calls.read_text() == "compiles\n"
    (sources / "Program.java").write_text("class Program { int n; }")
    assert program() != first.result()
    assert [path.name for path in (sources / "build").iterdir() if path.is_dir()] == [
        Path(program()[3].partition(":")[0]).name
    ]

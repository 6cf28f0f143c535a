"""Java programs are compiled by one process at a time, because each worker of a test run may want the same ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench import java_program
from bench.errors import BenchFailed

from tidemark.processes import wait_until


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each call of a compiler, which works until there is a file `end` beside it."""
    called, compiler = tmp_path / "calls", tmp_path / "javac"
    compiler.write_text(
        f'#!/bin/sh\necho compiles >> "{called}"\nwhile [ ! -e "{tmp_path}/end" ]; do sleep 0.05; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(java_program, "compiler", lambda: compiler)
    return called


def test_should_compile_once_when_several_want_the_same_classes(calls: Path, tmp_path: Path) -> None:
    sources, build = tmp_path / "sources", tmp_path / "build"
    sources.mkdir()
    (sources / "Program.java").write_text("class Program {}")

    def classes() -> Path:
        return java_program.compiled(sources, build, [])

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(classes)
        assert wait_until(calls.exists, 60)
        second = pool.submit(classes)
        meanwhile = wait_until(lambda: second.done() or calls.read_text().count("compiles") > 1, 0.5)
        (tmp_path / "end").touch()
        assert first.result(60) == second.result(60) == classes()
    assert not meanwhile, "it did not wait for the one that compiles"
    assert calls.read_text() == "compiles\n"
    (sources / "Program.java").write_text("class Program { int n; }")
    assert classes() != first.result()
    assert [path for path in build.iterdir() if path.is_dir()] == [classes()]


def test_should_say_what_the_compiler_refused_and_compile_again_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Program.java").write_text("class Program {}")
    compiler = tmp_path / "javac"
    compiler.write_text("#!/bin/sh\necho 'Program.java:1: error' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(java_program, "compiler", lambda: compiler)
    with pytest.raises(BenchFailed, match=r"do not compile: Program\.java:1: error"):
        java_program.compiled(tmp_path, tmp_path / "build", [])
    compiler.write_text("#!/bin/sh\n")
    assert java_program.compiled(tmp_path, tmp_path / "build", []).is_dir()

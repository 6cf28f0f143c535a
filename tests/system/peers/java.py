"""Java programs beside tests: compiled once per change, run on the verified jars of the benchmark's peer."""

from __future__ import annotations

from pathlib import Path

from bench import java_program

from tidemark.kafka import jars, java
from tidemark.settings import Settings

_FOLDER = Path(__file__).parent


def program(
    settings: Settings, main: str, *arguments: str | Path, heap: str = "512m", folder: Path = _FOLDER
) -> list[str]:
    """The command that runs a class of a folder, this one by default.

    Blocks while it is compiled; raises `BenchFailed`.
    """
    libraries = jars.ensure("bench", settings)
    classes = java_program.compiled(folder, folder / "build", libraries)
    path = java_program.classpath([classes, *libraries])
    return [str(java.find().executable), f"-Xmx{heap}", "-cp", path, main, *map(str, arguments)]

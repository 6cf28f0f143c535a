"""Java programs beside tests: compiled once per change, run on the verified jars of the benchmark's peer."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from bench.peer import classpath, compiler

from tidemark.kafka import jars, java
from tidemark.settings import Settings

_FOLDER = Path(__file__).parent


class CannotCompile(Exception):
    """There is no compiler, or it refuses a program."""


def program(
    settings: Settings, main: str, *arguments: str | Path, heap: str = "512m", folder: Path = _FOLDER
) -> list[str]:
    """The command that runs a class of a folder, this one by default.

    Blocks while it is compiled; raises `CannotCompile`.
    """
    libraries = jars.ensure("bench", settings)
    path = classpath([_compiled(folder, libraries), *libraries])
    return [str(java.find().executable), f"-Xmx{heap}", "-cp", path, main, *map(str, arguments)]


def _compiled(folder: Path, libraries: list[Path]) -> Path:
    javac = compiler()
    if javac is None:
        raise CannotCompile(f"{java.find().home} has no javac: install a JDK, 17 or later")
    sources = sorted(folder.glob("*.java"))
    content = b"".join(source.read_bytes() for source in sources) + classpath(libraries).encode()
    build = folder / "build"
    classes = build / hashlib.sha256(content).hexdigest()[:16]
    if classes.exists():
        return classes
    shutil.rmtree(build, ignore_errors=True)
    unfinished = classes.with_suffix(".unfinished")
    unfinished.mkdir(parents=True)
    command = [javac, "-nowarn", "-d", unfinished, "-cp", classpath(libraries), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotCompile(done.stderr.strip())
    unfinished.rename(classes)
    return classes

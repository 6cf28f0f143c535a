"""Java programs beside tests: compiled once per change, run on the verified jars of the benchmark's peer."""

from __future__ import annotations

import fcntl
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
    finished = classes / "finished"
    build.mkdir(exist_ok=True)
    # Several workers of a test run may want the classes at the same time.
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if finished.exists():
            return classes
        for earlier in (entry for entry in build.iterdir() if entry.is_dir()):
            shutil.rmtree(earlier)
        classes.mkdir()
        command = [javac, "-nowarn", "-d", classes, "-cp", classpath(libraries), *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotCompile(done.stderr.strip())
        finished.touch()
    return classes

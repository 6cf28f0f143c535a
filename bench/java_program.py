"""Compiles Java programs that run beside Tidemark: a folder of sources once per change, by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from bench.errors import BenchFailed
from tidemark.kafka import java


def compiler() -> Path | None:
    """Return the compiler of the Java that runs everything, or None if that is only a JRE."""
    javac = java.find().home / "bin" / "javac"
    return javac if javac.exists() else None


def classpath(entries: list[Path]) -> str:
    """Return a list of jars and folders as a Java class path."""
    return os.pathsep.join(str(entry) for entry in entries)


def compiled(sources: Path, build: Path, libraries: list[Path]) -> Path:
    """Compile the Java files of the folder `sources`, unless that was done before, and return their folder of classes.

    Only one process compiles into `build` at a time; the others wait for its classes. What was compiled from earlier sources
    is removed. Raises `BenchFailed` with the compiler's messages, or if there is no compiler.
    """
    javac = compiler()
    if javac is None:
        raise BenchFailed(
            f"{java.find().home} has no compiler; install a JDK of version 17 or later (Debian: openjdk-17-jdk-headless)"
        )
    files = sorted(sources.glob("*.java"))
    content = b"".join(file.read_bytes() for file in files) + classpath(libraries).encode()
    classes = build / hashlib.sha256(content).hexdigest()[:16]
    finished = classes / "finished"
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if finished.exists():
            return classes
        for earlier in (entry for entry in build.iterdir() if entry.is_dir()):
            shutil.rmtree(earlier)
        classes.mkdir()
        command = [str(javac), "-nowarn", "-d", str(classes), "-cp", classpath(libraries), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchFailed(f"the Java programs of {sources} do not compile: {done.stderr.strip()}")
        finished.touch()
    return classes

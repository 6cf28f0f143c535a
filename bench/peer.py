"""The Kafka Streams program (the *peer*): compiled once per change of its source, run as one Java process."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from bench.cases import GRACE_MS, INPUT_TOPIC, OUTPUT_TOPIC, RETENTION_MS, WINDOW_MS, Case
from bench.errors import BenchFailed
from tidemark.kafka import java

_SOURCES = sorted((Path(__file__).parent / "peers").glob("*.java"))
_BUILD = Path(__file__).parent / "build" / "peers"
APPLICATION_ID = "streams-peer"


def compiler() -> Path | None:
    """Return the compiler of the Java that runs everything, or None if that is only a JRE."""
    javac = java.find().home / "bin" / "javac"
    return javac if javac.exists() else None


def compile_peer(jars: list[Path]) -> Path:
    """Compile the peer against `jars`, unless that was done before, and return the folder of classes.

    Raises `BenchFailed` with the compiler's messages, or if there is no compiler.
    """
    javac = compiler()
    if javac is None:
        raise BenchFailed(
            f"{java.find().home} has no compiler; install a JDK of version 17 or later (Debian: openjdk-17-jdk-headless)"
        )
    sources = b"".join(source.read_bytes() for source in _SOURCES)
    fingerprint = hashlib.sha256(sources + classpath(jars).encode()).hexdigest()[:16]
    classes = _BUILD / fingerprint
    if classes.exists():
        return classes
    shutil.rmtree(_BUILD, ignore_errors=True)
    unfinished = _BUILD / f"{fingerprint}.unfinished"
    unfinished.mkdir(parents=True)
    command = [str(javac), "-nowarn", "-d", str(unfinished), "-cp", classpath(jars), *map(str, _SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchFailed(f"the peer does not compile: {done.stderr.strip()}")
    unfinished.rename(classes)
    return classes


def classpath(entries: list[Path]) -> str:
    """Return a list of jars and folders as a Java class path."""
    return os.pathsep.join(str(entry) for entry in entries)


def properties(
    case: Case, bootstrap: str, state_dir: Path, instance: int, threads: int, overrides: dict[str, str]
) -> str:
    """Return the configuration file of an instance. Settings not named here have Kafka Streams' defaults; `overrides` win."""
    values = {
        "application.id": APPLICATION_ID,
        "bootstrap.servers": bootstrap,
        "state.dir": str(state_dir),
        "processing.guarantee": "exactly_once_v2",
        "num.stream.threads": str(threads),
        # As Tidemark's instances: a member that starts again has its tasks at once, without waiting for the old one's end.
        "group.instance.id": f"{APPLICATION_ID}-{instance}",
        "commit.interval.ms": str(case.commit_interval_ms),
        "auto.offset.reset": "earliest",
        "bench.input": INPUT_TOPIC,
        "bench.output": OUTPUT_TOPIC,
        "bench.window.ms": str(WINDOW_MS),
        "bench.grace.ms": str(GRACE_MS),
        "bench.retention.ms": str(RETENTION_MS),
        **overrides,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())

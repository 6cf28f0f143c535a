"""The Kafka Streams program (the *peer*): compiled once per change of its source, run as one Java process."""

from __future__ import annotations

from pathlib import Path

from bench import java_program
from bench.case import APART_MS, GAP_MS, GRACE_MS, JOIN_GRACE_MS, RETENTION_MS, WINDOW_MS, Case

_SOURCES = Path(__file__).parent / "peers"
_BUILD = Path(__file__).parent / "build" / "peers"
APPLICATION_ID = "streams-peer"


def compile_peer(jars: list[Path]) -> Path:
    """Compile the peer against `jars`, unless that was done before, and return the folder of classes.

    Raises `BenchFailed` with the compiler's messages, or if there is no compiler.
    """
    return java_program.compiled(_SOURCES, _BUILD, jars)


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
        "bench.inputs": ",".join(case.program.sources),
        "bench.output": case.program.sink,
        "bench.window.ms": str(WINDOW_MS),
        "bench.grace.ms": str(GRACE_MS),
        "bench.gap.ms": str(GAP_MS),
        "bench.apart.ms": str(APART_MS),
        "bench.join.grace.ms": str(JOIN_GRACE_MS),
        "bench.retention.ms": str(RETENTION_MS),
        **overrides,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())

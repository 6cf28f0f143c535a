"""Chooses the parts of the demo that a machine has the cores and the memory for."""

from __future__ import annotations

from dataclasses import dataclass

FIRST = "patient_monitoring"
OTHERS = ("clicks", "shopping")
_ALL_CORES, _ALL_BYTES = 2, 10 * (1 << 30)
_AUDIT_CORES = 4


@dataclass(frozen=True)
class Capacity:
    """The streams to run, in the order of their launches; and whether the audit stays on after its first run.

    `reasons` say what was left out, and why.
    """

    streams: tuple[str, ...]
    keeps_audit: bool
    reasons: tuple[str, ...]


def capacity(cores: int, memory_bytes: int) -> Capacity:
    """Return what so many cores and so much memory (of the whole machine) bear.

    Broker, Airflow and three streams take about 6 GB by the figures of their parts (1, 1.5 and 1.2 each), and a drill and an
    audit come on top. The audit starts a Spark job of one core for each stream every quarter of an hour.
    """
    reasons: list[str] = []
    streams: tuple[str, ...] = (FIRST, *OTHERS)
    if cores < _ALL_CORES or memory_bytes < _ALL_BYTES:
        streams = (FIRST,)
        reasons.append(
            f"{' and '.join(OTHERS)} do not run: three streams need {_ALL_CORES} cores and {_ALL_BYTES >> 30} GB of memory, "
            f"and this machine has {cores} and {memory_bytes / (1 << 30):.0f} GB. Unpause their DAGs to run them all the same"
        )
    keeps_audit = cores >= _AUDIT_CORES
    if not keeps_audit:
        reasons.append(
            f"exactly_once_audit is paused after its first run: every 15 minutes is too often for {cores} cores"
        )
    return Capacity(streams, keeps_audit, tuple(reasons))

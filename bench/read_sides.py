"""The two sides of the reads: the commands of their instances, and where these answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from bench.case import INPUT_TOPIC, PARTITIONS
from bench.key_reads import Target
from bench.programs import COUNTING
from bench.sides import Side, StreamsSide, TidemarkSide
from tidemark.devstack.ports import LOOPBACK
from tidemark.queries.access import read_token_file, token_file
from tidemark.settings import Settings
from tidemark.supervision.run_file import QUERY_URL, RunView, run_file_path
from tidemark.supervision.state import InstanceState

_HEAP = "1g"
_STORE = "pulse-counts"
_TIMEOUT_S = 5.0
_PORT = re.compile(r"serves its store on port (\d+)")


def instance_log(folder: Path, instance: int) -> Path:
    """Return the log of an instance of either side."""
    return folder / f"side-{instance}.log"


class ReadSide(Protocol):
    """One of the two sides, with its instances."""

    @property
    def side(self) -> Side:
        """The commands of the instances."""

    def targets(self, folder: Path) -> list[Target]:
        """Return where each instance answers; nothing until all run and hold all tasks together."""


@dataclass(frozen=True)
class TidemarkReads:
    """Tidemark's instances: each takes any read, and passes it on to the instance that owns the key. No limit of the rate."""

    side: TidemarkSide
    instances: int

    @classmethod
    def of(cls, settings: Settings, instances: int) -> TidemarkReads:
        """Return the side with the settings of a run."""
        return cls(TidemarkSide(settings, _HEAP, {"query_requests_per_second": "0"}), instances)

    def targets(self, folder: Path) -> list[Target]:
        """Return the addresses in the run files of all instances."""
        var_dir, application_id = folder / "var", COUNTING.application_id
        runs = [RunView.read(run_file_path(var_dir, application_id, number)) for number in range(self.instances)]
        held: list[str] = []
        found = []
        for run in runs:
            partitions = None if run is None else run.values.get("partitions")
            if run is None or run.state != InstanceState.RUNNING or not partitions or not run.values.get(QUERY_URL):
                return []
            held += partitions
            url = urlsplit(str(run.values[QUERY_URL]))
            token = next(iter(read_token_file(token_file(var_dir, application_id))))
            found.append(Target(str(url.hostname), int(url.port or 0), f"/v1/stores/{_STORE}/windows", token))
        expected = sorted(f"{INPUT_TOPIC}[{partition}]" for partition in range(PARTITIONS))
        return found if sorted(held) == expected else []


@dataclass(frozen=True)
class StreamsReads:
    """Instances of Kafka Streams: each is asked for the keys of its own partitions, because it knows no others."""

    side: StreamsSide
    instances: int

    @classmethod
    def of(cls, settings: Settings, instances: int) -> StreamsReads:
        """Return the side with as many threads for reads as Tidemark has by default."""
        return cls(StreamsSide(settings, _HEAP, query_threads=settings.query_threads), instances)

    def targets(self, folder: Path) -> list[Target]:
        """Return the ports in the logs of all instances, with the partitions that each instance says it has."""
        logs = [instance_log(folder, number) for number in range(self.instances)]
        ports = [_PORT.search(log.read_text(encoding="utf-8", errors="replace")) for log in logs]
        if not all(ports):
            return []
        found = [
            Target(LOOPBACK, port, "/windows", partitions=frozenset(_partitions(port)))
            for port in (int(match[1]) for match in ports if match)
        ]
        held = sorted(partition for target in found for partition in target.partitions or ())
        is_spread = all(target.partitions for target in found)
        return found if is_spread and held == list(range(PARTITIONS)) else []


def _partitions(port: int) -> list[int]:
    """Return the partitions of an instance's active tasks; nothing while it does not run."""
    try:
        answer = httpx.get(f"http://{LOOPBACK}:{port}/partitions", timeout=_TIMEOUT_S).raise_for_status()
    except httpx.HTTPError:
        return []
    partitions: list[int] = answer.json()
    return partitions

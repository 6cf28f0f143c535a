"""Kafka Streams' side of a case: one JVM with `FuzzServer.java`, a line in and a line out for each case."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.system.fuzz.batches import KafkaRecord, pipeline_table
from tests.system.fuzz.case import Case, JoinNode, Record, StreamNode, TableNode, as_json, expressions, shapes
from tests.system.fuzz.expressions import Expression
from tests.system.fuzz.results import Line, Results, SideFailed
from tests.system.peers import java

from tidemark.settings import Settings
from tidemark.tasks.partials import Status
from tidemark.topology.plan import SubTopology


def command(settings: Settings) -> list[str]:
    """The JVM's command. Blocks while the program is compiled; raises `BenchFailed`."""
    program = java.program(settings, "FuzzServer", folder=Path(__file__).parent)
    # Two JVMs run beside two Pythons on few cores: one thread of each kind is enough.
    return [program[0], "-XX:+UseSerialGC", "-XX:CICompilerCount=2", *program[1:]]


class JavaSide:
    """The process; a context manager. One case at a time: `send`, then `receive`."""

    def __init__(self, settings: Settings) -> None:
        """Blocks while the program is compiled. Raises `BenchFailed`."""
        self._process = subprocess.Popen(
            command(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> JavaSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process. May be called twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, case: Case) -> None:
        """Begin with a case."""
        given = as_json(case, in_order(case))
        if self._process.stdin is None:
            raise SideFailed("the JVM has no input")
        self._process.stdin.write(json.dumps(given, separators=(",", ":")) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Results:
        """The answer to the case that was sent. Raises `SideFailed`."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SideFailed(f"the JVM ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideFailed(f"Kafka Streams: {answer['error']}")
        return Results(_lines(answer["sinks"]), _lines(answer["stores"]), int(answer["dropped"]))

    def run(self, case: Case) -> Results:
        """A whole case."""
        self.send(case)
        return self.receive()


def _lines(found: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Line]]:
    return {name: [Line(*line) for line in lines] for name, lines in found.items()}


def in_order(case: Case) -> list[Record]:
    """The records in the order in which Tidemark takes them."""
    if case.commits_each:
        return list(case.records)
    known, order = expressions(case), _topic_order(case)
    return [
        record
        for batch in case.batches
        for subtopology in case.plan.subtopologies
        for record in _merged(subtopology, [r for r in batch if r.topic in subtopology.source_topics], order, known)
    ]


def _merged(
    subtopology: SubTopology, batch: Sequence[Record], order: Mapping[str, int], known: Mapping[str, Expression]
) -> list[Record]:
    """As a merge on the topics' next timestamps gives them: by the newest of the topic so far, then by topic and offset.

    What Spark takes out of every branch has no part in a topic's newest timestamp.
    """
    placed = []
    for topic in subtopology.source_topics:
        ours = [record for record in batch if record.topic == topic]
        taken = _taken(subtopology, ours, known)
        newest = 0
        for offset, record in enumerate(ours):
            newest = max(newest, record.timestamp) if offset in taken else newest
            placed.append(((newest, order[topic], offset), record))
    return [record for _, record in sorted(placed, key=lambda pair: pair[0])]


def _taken(subtopology: SubTopology, records: Sequence[Record], known: Mapping[str, Expression]) -> set[int]:
    """The places of the records that enter the task loop on some branch."""
    read = [
        KafkaRecord(
            r.topic,
            offset,
            None if r.key is None else r.key.encode(),
            None if r.row is None else json.dumps(r.row).encode(),
            r.timestamp,
        )
        for offset, r in enumerate(records)
    ]
    tables = [pipeline_table(subtopology, b, read, known) for b in subtopology.pipelines if b.enters and read]
    return {
        offset
        for table in tables
        for offset, status in zip(*(table.column(n).to_pylist() for n in ("__record_offset", "__status")), strict=True)
        if status == Status.GOOD
    }


def _topic_order(case: Case) -> dict[str, int]:
    """Of equal times, topics that only feed tables go before the others, then as they are written."""
    known = shapes(case.nodes)
    tables = {place for place, node in enumerate(case.nodes) if isinstance(node, TableNode)}
    streams: set[int] = set()
    for node in case.nodes:
        if isinstance(node, JoinNode) and known[node.left].kind == "stream" and known[node.right].kind == "table":
            streams |= known[node.left].sources
            tables |= known[node.right].sources
    sources = [place for place, node in enumerate(case.nodes) if isinstance(node, StreamNode | TableNode)]
    ordered = sorted(sources, key=lambda place: (place in streams or place not in tables, place))
    return {case.nodes[place].topic: rank for rank, place in enumerate(ordered)}  # type: ignore[attr-defined]

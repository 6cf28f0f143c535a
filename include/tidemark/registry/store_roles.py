"""Descriptions of what a node uses a store for. They stay the same as long as the stored bytes mean the same."""

from __future__ import annotations

import re

from tidemark.topology.durations import format_ms
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.plan import (
    Aggregation,
    Map,
    Pipeline,
    Process,
    Reduce,
    Rekey,
    RowSink,
    SessionWindow,
    SlidingWindow,
    Source,
    StreamStreamJoin,
    SubTopology,
    Suppress,
    TableSource,
    TaskNode,
    TopologyPlan,
    Window,
)

_OWN_KEY = re.compile(r"(?<!\w)_key(?!\w)", re.IGNORECASE)

_BETWEEN, _READ_AS, _OPENING, _CLOSING = ", ", "read as ", ("(", "["), (")", "]")
_KEY_MARK = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|[()\[\]]|, """)
"""The separator of expressions, and what may contain it within one expression: quoted texts, and brackets."""

ORDER = "order"
"""The role of the store that keeps the order in which keys leave another store."""
SUPPRESS, PROCESS = "suppress", "process"
JOIN_SIDES = ("join, this side", "join, other side", "join, rows without a partner")
_ROLES: dict[type[TaskNode], str] = {Suppress: SUPPRESS, Reduce: "reduce", TableSource: "table", Process: PROCESS}


def role_of(node: TaskNode, place: int) -> str:
    """Return the role of the node's store at `place`."""
    if isinstance(node, StreamStreamJoin):
        return JOIN_SIDES[place]
    if not node.stores[place].columns and node.stores[place].name.endswith("-order"):
        return ORDER
    if isinstance(node, Reduce) and node.initializer is not None:
        return "fold"
    return _ROLES.get(type(node), type(node).__name__)


def window_text(window: Window | SessionWindow | SlidingWindow | None) -> str:
    """Return what decides the window of a record. Grace is left out, because it only decides how long a window stays open."""
    if window is None:
        return ""
    if isinstance(window, SessionWindow):
        return f"sessions with a gap of {format_ms(window.gap_ms)}"
    if isinstance(window, SlidingWindow):
        return f"sliding windows of {format_ms(window.difference_ms)}"
    if window.size_ms == window.advance_ms:
        return f"windows of {format_ms(window.size_ms)}"
    return f"windows of {format_ms(window.size_ms)} every {format_ms(window.advance_ms)}"


def window_of(subtopology: SubTopology, node: TaskNode) -> str:
    """Return the windows that a node's stores hold: its own, or those of the node whose rows it takes."""
    if isinstance(node, StreamStreamJoin):
        return f"{format_ms(node.before_ms)} before to {format_ms(node.after_ms)} after"
    if isinstance(node, Reduce):
        return window_text(node.window)
    if not isinstance(node, Suppress):
        return ""
    makers: dict[str, Aggregation | TaskNode] = {a.node: a for a in subtopology.aggregations}
    makers |= {each.node: each for each in subtopology.nodes}
    found = makers.get(node.inputs[0])
    while isinstance(found, TaskNode) and not isinstance(found, Reduce) and found.inputs:
        found = makers.get(found.inputs[0])
    return window_text(found.window) if isinstance(found, Aggregation | Reduce) else ""


def key_of_pipeline(plan: TopologyPlan, subtopology: SubTopology, pipeline: Pipeline) -> str:
    """Return the SQL that the keys of an aggregation are made of."""
    return _key_of(plan, subtopology.sources[pipeline.source])


def key_of_nodes(plan: TopologyPlan, subtopology: SubTopology) -> str:
    """Return the SQL that the keys of the task loop are made of, that of each source once."""
    return ", ".join(dict.fromkeys(_key_of(plan, source) for source in subtopology.sources))


def keys_in(text: str) -> tuple[str, ...]:
    """Return the expressions in what `key_of_nodes` has returned, in its order, which is that of the module's lines."""
    found, start, depth = [], 0, 0
    for mark in _KEY_MARK.finditer(text):
        depth += (mark[0] in _OPENING) - (mark[0] in _CLOSING)
        if mark[0] == _BETWEEN and not depth and not text.startswith(_READ_AS, mark.end()):
            found.append(text[start : mark.start()])
            start = mark.end()
    return (*found, text[start:])


def _key_of(plan: TopologyPlan, source: Source) -> str:
    """Return SQL over the records of a user's topic, or the key that a repartition was made by."""
    for subtopology in plan.subtopologies:
        for pipeline in subtopology.pipelines:
            if any(sink.is_repartition and sink.topic == source.topic for sink in pipeline.sinks):
                rekeyed = [step.key for step in pipeline.steps if isinstance(step, Rekey)]
                first = subtopology.sources[pipeline.source]
                return _plain(rekeyed[-1] if rekeyed else first.key, first.key_serde)
        maps = {node.node: node for node in subtopology.nodes if isinstance(node, Map)}
        for node in subtopology.nodes:
            if isinstance(node, RowSink) and node.sink.is_repartition and node.sink.topic == source.topic:
                return _plain(maps[node.inputs[0]].key or "", subtopology.lead.key_serde)
    return _plain(source.key, source.key_serde)


def _plain(text: str, serde: KeySerde) -> str:
    """Return an expression in one line. What it gives for the record's own key depends on the form of that key."""
    plain = " ".join(text.split())
    names_key = serde is not KeySerde.STRING and _OWN_KEY.search(plain)
    return f"{plain}, {_READ_AS}{serde.value}" if names_key else plain

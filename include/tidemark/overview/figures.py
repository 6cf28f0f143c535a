"""The figures that the drawing of a running application shows in its boxes."""

from __future__ import annotations

from collections import Counter

from tidemark.overview.application import Application
from tidemark.overview.format import format_bytes
from tidemark.topology.drawing.diagram import Figures


def drawing_figures(app: Application) -> Figures:
    """Return rates and lag of topics, keys and bytes of stores, and late rows of sub-topologies. Lines keep their length."""
    return Figures(_topics(app), {}, _stores(app), _late(app))


def _topics(app: Application) -> dict[str, tuple[str, ...]]:
    live = app.live
    if live is None or live.figures is None:
        return {}
    shown: dict[str, tuple[str, ...]] = {}
    for subtopology in live.plan.subtopologies:
        for topic in subtopology.sink_topics:
            shown[topic] = (_rate("out", live.figures.written_per_s.get(topic, 0.0)),)
    for topic, lag in sorted(live.lag.items()):
        read = (_rate("in", live.figures.read_per_s.get(topic, 0.0)), f"{'lag':<4}{lag:>9,}")
        shown[topic] = (*shown.get(topic, ()), *read)
    return shown


def _rate(name: str, per_s: float) -> str:
    return f"{name:<4}{per_s:>9,.0f}/s"


def _stores(app: Application) -> dict[str, tuple[str, ...]]:
    keys: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for row in app.stores or ():
        if row.is_counted:
            keys[row.store] += row.keys.value or 0
            size[row.store] += row.bytes_disk.value or 0
    return {name: (f"{keys[name]:>11,} keys", f"{format_bytes(size[name]):>12}") for name in size}


def _late(app: Application) -> dict[int, str]:
    figures = app.live.figures if app.live is not None else None
    if figures is None:
        return {}
    return {s.index: f"{figures.late.get(s.index, 0):,} late" for s in app.plan.subtopologies}

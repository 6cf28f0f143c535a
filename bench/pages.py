"""Writes measured results as Markdown, and to a page of the documentation between two marks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.errors import BenchFailed

_BEGIN = "<!-- results: begin -->"
_END = "<!-- results: end -->"


def measured_on(facts: dict[str, Any]) -> list[str]:
    """Return the lines that say when and on what was measured; `facts` are those of `bench.machine.machine`."""
    return [
        f"Measured {facts['when']} on {facts['cores']} cores ({facts['cpu']}), {facts['memory_gb']} GB,",
        f"broker included; {facts['java']}; Kafka {facts['kafka']}, pyspark {facts['pyspark']}.",
        "",
    ]


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def median_and_runs(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return the cell of a measure: its median, and the value of each run if there are several; a dash if there is none."""
    if not values:
        return "–"
    return show(median(values)) + (f" ({', '.join(map(show, values))})" if len(values) > 1 else "")


def publish(page: Path, summary: Path, picture: Path | None = None, about: str = "") -> None:
    """Replace the results of a page and its picture, `images/<page>.png`. Raises `BenchFailed` if the marks are missing."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise BenchFailed(f"{page} has no `{_BEGIN}` … `{_END}`; put the two marks back")
    results = summary.read_text(encoding="utf-8").strip()
    if picture is not None:
        images = page.parent / "images"
        images.mkdir(exist_ok=True)
        shutil.copyfile(picture, images / f"{page.stem}.png")
        results += f"\n\n![{about}](images/{page.stem}.png)"
    page.write_text(f"{before}{_BEGIN}\n\n{results}\n\n{_END}{after}", encoding="utf-8")

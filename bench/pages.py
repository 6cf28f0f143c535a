"""Writes measured results to a page of the documentation, between two marks."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.errors import BenchFailed

_BEGIN = "<!-- results: begin -->"
_END = "<!-- results: end -->"


def publish(page: Path, summary: Path, picture: Path, about: str) -> None:
    """Replace the results of a page and its picture, `images/<page>.png`. Raises `BenchFailed` if the marks are missing."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise BenchFailed(f"{page} has no `{_BEGIN}` … `{_END}`; put the two marks back")
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    shutil.copyfile(picture, images / f"{page.stem}.png")
    results = summary.read_text(encoding="utf-8").strip()
    body = f"{_BEGIN}\n\n{results}\n\n![{about}](images/{page.stem}.png)\n\n{_END}"
    page.write_text(before + body + after, encoding="utf-8")

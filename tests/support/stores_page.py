"""The example of a custom store in `docs/stores.md`, importable as `tests.support.stores_page:SqliteStore`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemark.stores.protocol import Store

PAGE = Path(__file__).parents[2] / "docs" / "stores.md"
SOURCES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
(SOURCE,) = (source for source in SOURCES if "class SqliteStore" in source)
_names: dict[str, Any] = {}
exec(SOURCE, _names)
SqliteStore: Callable[[Path], Store] = _names["SqliteStore"]


def custom_store() -> Callable[[Path], Store]:
    """The class on the page."""
    return SqliteStore

"""The example in `docs/testing.md` is a test, and passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


@pytest.mark.spark
def test_should_pass_the_test_on_the_page(topology_driver):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    names["test_a_minute_should_be_final_once_its_grace_is_over"](topology_driver)

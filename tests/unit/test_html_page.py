"""Templates of HTML pages: a missing value is an error, and an installed package has all templates."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import tidemark
from tidemark.html_page import render_page

PACKAGE = Path(tidemark.__file__).parent
TEMPLATES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.html"))


@pytest.mark.parametrize("template", [path for path in TEMPLATES if path.name != "macros.html"], ids=str)
def test_should_refuse_a_page_without_its_values(template):
    with pytest.raises(UndefinedError):
        render_page(template.as_posix())


def test_should_be_part_of_the_installed_package():
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["tidemark"]
    packaged = {path.relative_to(PACKAGE) for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert TEMPLATES
    assert packaged.issuperset(TEMPLATES)

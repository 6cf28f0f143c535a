"""`docs/settings.md` is the settings, printed."""

from __future__ import annotations

from pathlib import Path

from tidemark.settings import Settings
from tidemark.settings_table import markdown

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_should_match_the_settings_page() -> None:
    assert PAGE.read_text() == markdown(), "run: .venv/bin/python -m tidemark.settings_table > docs/settings.md"


def test_should_describe_every_setting() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_should_not_show_the_home_folder_on_the_page() -> None:
    assert str(Path.home()) not in markdown()

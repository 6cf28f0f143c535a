"""`docs/settings.md` is the settings, printed."""

from __future__ import annotations

from pathlib import Path

from tidemark.settings import Settings
from tidemark.settings_table import markdown

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_should_be_what_the_settings_are() -> None:
    assert PAGE.read_text() == markdown(), "run: .venv/bin/python -m tidemark.settings_table > docs/settings.md"


def test_every_setting_should_say_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_home_folder_of_whoever_makes_the_page_should_not_be_in_it() -> None:
    assert str(Path.home()) not in markdown()

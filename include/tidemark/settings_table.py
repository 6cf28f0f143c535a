"""Prints `docs/settings.md` from `Settings`: `.venv/bin/python -m tidemark.settings_table > docs/settings.md`."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tidemark.settings import Settings
from tidemark.settings_names import NOT_SETTINGS

_HEAD = """\
# Settings

Made from `include/tidemark/settings.py` by `.venv/bin/python -m tidemark.settings_table > docs/settings.md`.

Each setting is read from the environment (`TIDEMARK_…`), else from `tidemark.toml` in the project (under its lower-case name;
`TIDEMARK_CONFIG` names another file), else from what `tidemark up` recorded of the running stack, else it has the default.
Times are in milliseconds if the name ends in `_ms`, sizes in bytes if it ends in `_bytes`. An unusable value is refused with
the name of its setting, and an unknown name with the nearest setting. Secrets are read from the environment only:
in `tidemark.toml` they are refused. Logs and errors never show them.

| environment | in `tidemark.toml` | default | meaning | in Kafka Streams |
|---|---|---|---|---|
"""

_VARIABLES = """
Environment variables that are not settings:

| environment | meaning |
|---|---|
"""


def markdown() -> str:
    """Return the whole page, ending in a newline."""
    rows = (_row(name, field) for name, field in Settings.model_fields.items())
    return _HEAD + "".join(rows) + _VARIABLES + "".join(f"| `{n}` | {about} |\n" for n, about in NOT_SETTINGS.items())


def _row(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    streams = str(extra.get("streams", ""))
    if streams and not streams.startswith("("):
        streams = f"`{streams}`"
    about = field.description or ""
    if get_origin(field.annotation) is Literal:
        about += "; one of " + ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    cells = (f"`TIDEMARK_{name.upper()}`", f"`{name}`", _default(field.default), about, streams)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(value: Any) -> str:
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    print(markdown(), end="")

"""Commands about the state of an application that has never run say that, and do not blame the brokers."""

from __future__ import annotations

import pytest
from tests.support.counting import CountingApp
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.errors import ExitCode, StartRefused

pytestmark = pytest.mark.broker


def test_should_refuse_commands_about_an_application_that_has_never_run(settings, admin, unique, tmp_path, monkeypatch):
    app = CountingApp(settings, admin, unique("unborn"))
    name = app.for_commands(tmp_path, monkeypatch)
    for command in (
        ("clean", "plan", name),
        ("restore", "plan", name),
        ("inspect", name),
        ("drill", "run", name),
        ("rewind", "plan", name, "--to", "-1s"),
    ):
        said = CliRunner().invoke(build(), command).exception
        assert isinstance(said, StartRefused), (command, said)
        assert said.exit_code is ExitCode.REFUSED
        assert f"{app.name} has never run at " in str(said), command

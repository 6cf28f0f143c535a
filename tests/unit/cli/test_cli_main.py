"""The command line: its commands by name, its errors in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tidemark.cli import main
from tidemark.errors import ExitCode, StartRefused


def test_should_make_every_module_a_command_of_the_same_name() -> None:
    assert {"up", "down", "status", "jars", "kafka"} <= set(main.command_names())
    main.build(main.command_names())


@pytest.mark.parametrize(
    ("noun", "verbs"),
    [
        *((noun, "plan, run") for noun in ("upgrade", "rescale", "rewind", "clean", "repair", "reset")),
        ("optimise", "plan, measure"),
        ("drill", "run, history"),
        ("audit", "run"),
        ("standby", "run"),
        ("topics", "create, plan, run, list"),
        ("restore", "plan, run, status, abort, rollback"),
    ],
)
def test_should_list_the_verbs_when_a_noun_has_none(noun: str, verbs: str) -> None:
    called = CliRunner().invoke(main.build([noun]), [noun, "clicks"], env={"COLUMNS": "200"}, prog_name="tidemark")
    assert called.exit_code == 2
    assert f"No such command 'clicks'. `tidemark {noun}` has: {verbs}." in called.stderr


def test_should_print_an_error_as_one_line_and_exit_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise StartRefused("the store is ahead\nof the offsets:   run this")

    monkeypatch.setattr(main, "build", lambda names: refuse)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == ExitCode.REFUSED
    assert capsys.readouterr().err == "tidemark: the store is ahead of the offsets: run this\n"


@pytest.mark.parametrize("command", ["down", "status", "jars"])
def test_should_not_import_the_clients_of_another_command(command: str) -> None:
    code = (
        f"import sys; sys.argv = ['tidemark', {command!r}, '--help']\n"
        "from tidemark.cli import main\n"
        "try: main.run()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'airflow', 'pyarrow', 'rocksdict', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

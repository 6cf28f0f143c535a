"""The command line: its commands by name, what each imports, its errors in one line."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from typer.models import OptionInfo
from typer.testing import CliRunner

from tidemark.cli import commands, main
from tidemark.errors import ExitCode, StartRefused

NAMES = [name for section in main.COMMANDS.values() for name in section]
CLIENTS = (
    "confluent_kafka", "pyarrow", "numpy", "pandas", "rocksdict", "duckdb", "sqlalchemy", "httpx", "psutil", "pyspark",
    "airflow", "tidemark.settings",
)  # fmt: skip
"""What a command that only describes something must not wait for. The settings alone take longer than all of `describe`."""


def test_should_list_every_module_and_have_a_module_for_every_listed_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert modules == set(NAMES)
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_should_explain_every_command(name: str) -> None:
    # `kafka` hands its options to the tool, so its help is that of the list.
    arguments = ["--help"] if name == "kafka" else [name, "--help"]
    shown = CliRunner().invoke(main.build(), arguments, env={"COLUMNS": "80"}, prog_name="tidemark")
    assert shown.exit_code == 0, shown.output
    assert name in shown.stdout


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
    called = CliRunner().invoke(main.build(), [noun, "clicks"], env={"COLUMNS": "200"}, prog_name="tidemark")
    assert called.exit_code == 2
    assert f"No such command 'clicks'. `tidemark {noun}` has: {verbs}." in called.stderr


def test_should_suggest_the_nearest_command_for_an_unknown_name() -> None:
    called = CliRunner().invoke(main.build(), ["upgrad", "run"], env={"COLUMNS": "200"}, prog_name="tidemark")
    assert called.exit_code == 2
    assert "No such command 'upgrad'. Did you mean 'upgrade'?" in called.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kafka", "consumer-group"], "no Kafka tool named consumer-group; the tools are"),
        (["jars", "nope"], "no jar set named nope; the sets are"),
        (["restore", "run", "clicks", "--resume", "x", "--from", "savepoint"], "omit --from, --task and --store"),
        (["restore", "run", "clicks", "--plan", "x.json", "--from", "local"], "omit --from, --task and --store"),
        (["restore", "run", "clicks", "--plan", "x.json", "--task", "0_0"], "omit --from, --task and --store"),
        (["restore", "run", "clicks", "--plan", "x.json", "--resume", "x"], "omit --plan"),
    ],
)
def test_should_refuse_wrong_arguments_as_a_usage_error(arguments: list[str], said: str) -> None:
    called = CliRunner().invoke(main.build(), arguments, env={"COLUMNS": "200"}, prog_name="tidemark")
    assert called.exit_code == ExitCode.USAGE
    assert said in called.stderr


def test_should_print_an_error_as_one_line_and_exit_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise StartRefused("the store is ahead\nof the offsets:   run this")

    monkeypatch.setattr(main, "build", lambda: refuse)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == ExitCode.REFUSED
    assert capsys.readouterr().err == "tidemark: the store is ahead of the offsets: run this\n"


def test_should_print_a_file_that_cannot_be_used_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(main, "build", lambda: lambda **_: (tmp_path / "file" / "out").mkdir(parents=True))
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == ExitCode.FAILED
    shown = capsys.readouterr().err
    assert (
        shown
        == f"tidemark: {tmp_path}/file/out cannot be used (Not a directory): correct the path or its permissions\n"
    )


def numbers() -> Iterator[tuple[str, OptionInfo]]:
    """Yield the options of all commands and of their verbs that are numbers."""
    for name in NAMES:
        module = importlib.import_module(f"tidemark.cli.commands.{name}")
        group = getattr(module, "app", None)
        called = [getattr(module, name)] if group is None else [verb.callback for verb in group.registered_commands]
        for function in called:
            for parameter, hint in get_type_hints(function, include_extras=True).items():
                if get_origin(hint) is Annotated:
                    kind, option = get_args(hint)
                    if isinstance(option, OptionInfo) and {int, float}.intersection(get_args(kind) or (kind,)):
                        yield f"{name} {parameter}", option


def test_should_bound_every_number() -> None:
    found = dict(numbers())
    assert {"inspect limit", "demo seconds", "demo patients", "dlq partition"} <= found.keys()
    unbounded = {name for name, option in found.items() if option.min is None}
    # A seed may be any number, and a replay checks its options itself.
    assert {name for name in unbounded if not name.startswith("replay ")} == {"optimise seed"}


def test_should_refuse_a_number_below_its_bound() -> None:
    called = CliRunner().invoke(
        main.build(), ["inspect", "clicks", "--limit", "-1"], env={"COLUMNS": "200"}, prog_name="tidemark"
    )
    assert called.exit_code == ExitCode.USAGE
    assert "'--limit': Input should be greater than or equal to 0" in called.stderr


def imported(code: str, **environment: str) -> set[str]:
    """Run the code in a process of its own. Return the modules that it has imported at its end."""
    listing = "import atexit, sys; atexit.register(lambda: print('', *sys.modules, file=sys.stderr))\n"
    done = subprocess.run(
        [sys.executable, "-c", listing + code], capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


def called(*arguments: str) -> str:
    return f"import sys; sys.argv = ['tidemark', *{list(arguments)}]\nfrom tidemark.cli.main import run\nrun()"


@pytest.mark.parametrize("is_json", [True, False])
def test_should_print_half_of_a_surrogate_pair_as_an_escape(is_json: bool) -> None:
    code = (
        f"from tidemark.cli import main; from tidemark.cli.output import Output\n"
        f"main.build = lambda: lambda **_: Output(as_json={is_json}).show(chr(0xd83d), 'key: ' + chr(0xd83d))\nmain.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ('"\\ud83d"\n' if is_json else "key: \\ud83d\n")


def test_should_import_no_command_to_list_all() -> None:
    found = imported(called("--help"))
    assert not {name for name in found if name.startswith("tidemark.cli.") and name != "tidemark.cli.main"}
    assert not found.intersection(CLIENTS)


@pytest.mark.parametrize("line", ["tidemark ", "tidemark restore plan --from ", "tidemark lag sho"])
def test_should_import_no_client_to_complete_a_command(line: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    found = imported(called(), _TIDEMARK_COMPLETE="complete_bash", **words)
    assert "typer" in found
    assert not found.intersection(CLIENTS)


def test_should_import_no_client_to_declare_commands() -> None:
    code = f"from tidemark.cli import main\nfor name in {NAMES}: main.load(name)"
    found = imported(code)
    assert {f"tidemark.cli.commands.{name}" for name in NAMES} <= found
    assert not found.intersection(CLIENTS)


@pytest.mark.parametrize("arguments", [("describe", "shopping"), ("optimise", "plan", "clicks")])
def test_should_import_no_client_for_commands_about_a_topology_alone(arguments: tuple[str, ...]) -> None:
    found = imported(called(*arguments))
    assert "topologies" in found
    assert not found.intersection({*CLIENTS, "rich"})

"""The page of commands and that of their JSON say what the commands do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.testing import CliRunner

from tidemark.audit.job import AuditResult
from tidemark.checks.store_growth import StoreGrowth, StoreSample
from tidemark.cli import (
    audit,
    check,
    clean,
    dlq,
    doctor,
    down,
    inspect,
    jars,
    lag,
    main,
    optimise,
    repair,
    rescale,
    reset,
    restore,
    rewind,
    savepoint,
    topics,
    up,
    upgrade,
)
from tidemark.cli.output import Output, as_json
from tidemark.devstack.measure import Measured
from tidemark.devstack.record import StackRecord
from tidemark.devstack.stack import Up
from tidemark.errors import ExitCode
from tidemark.events.event import Event
from tidemark.kafka.acls import Acl
from tidemark.kafka.lag import PartitionLag
from tidemark.names import TopicPartition
from tidemark.operations.change.repair_plan import RepairPlan
from tidemark.operations.change.rescale_plan import RescalePlan
from tidemark.operations.change.reset_plan import ResetPlan
from tidemark.operations.change.reset_target import ResetTo, StateAfter
from tidemark.operations.change.upgrade_plan import UpgradePlan
from tidemark.operations.clean import CleanPlan, Judged
from tidemark.operations.dead_letters.reader import StoredDeadLetter
from tidemark.operations.drill_history.report import DrillReport
from tidemark.operations.leftovers import Leftover, LeftoverKind
from tidemark.operations.machine.diagnosis import Diagnosis, Health
from tidemark.operations.rewind.plan import RewindPlan
from tidemark.operations.topic_changes import TopicChange
from tidemark.operations.workspace import RestoreState, WorkspaceProgress
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.savepoints.expiry import Expired
from tidemark.savepoints.repository import Savepoint
from tidemark.topology.optimisation import PlanDifference
from tidemark.topology_loader import load
from tidemark.verdict import Finding, Verdict

DOCS = Path(__file__).parents[3] / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table that follows a line of a page."""
    lines = (DOCS / page).read_text(encoding="utf-8").split(heading, 1)[1].splitlines()
    table = [line for line in lines if line.startswith("|")]
    # Up to the next table.
    end = next((n for n, line in enumerate(table[2:], 2) if line.startswith("|---")), len(table) + 1)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2 : end - 1]]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_table_of_exit_codes_should_be_that_of_the_code() -> None:
    documented = [(int(code), name) for code, name, _ in rows("commands.md", "## Exit codes")]
    assert documented == [(code.value, code.name) for code in ExitCode]


def test_every_command_should_be_on_the_page_of_commands() -> None:
    page = (DOCS / "commands.md").read_text().splitlines()
    listed = " ".join(line.split(" | ")[0] for line in page if line.startswith("| `tidemark "))
    missing = [
        name for section in main.COMMANDS.values() for name in section if not re.search(rf"[` ]{name}[` ]", listed)
    ]
    assert missing == []


def leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for name, verb in command.commands.items():
            yield from leaves(f"{path} {name}", verb)
    else:
        yield path, command


WITH_JSON = {
    path
    for section in main.COMMANDS.values()
    for name in section
    for path, command in leaves(name, main.load(name))
    if any("--json" in param.opts for param in command.params)
}
DOCUMENTED = {
    name: codes(re.sub(r"\([^)]*\)", "", value.split(";")[0]))
    for cell, value in rows("commands-json.md", "# JSON")
    for name in codes(cell)
}
NOUNS = ("upgrade", "rescale", "rewind", "reset", "repair")


def test_every_command_that_reports_something_should_have_a_form_in_json() -> None:
    silent = {"demo", "kafka", "standby run"}
    every = {
        path for section in main.COMMANDS.values() for name in section for path, _ in leaves(name, main.load(name))
    }
    assert every - WITH_JSON == silent


def test_the_form_of_every_command_should_be_documented() -> None:
    more = {"describe --svg", "stores --history", "check … --history"}
    assert set(DOCUMENTED) == WITH_JSON | more


class Kept(Output):
    """Keeps the value instead of printing it."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.value: Any = None

    def show(self, value: object, *views: object) -> None:
        list(views)
        self.value = json.loads(json.dumps(as_json(value)))


def run(*arguments: str) -> Any:
    """What a command prints that needs nothing but files."""
    done = CliRunner().invoke(main.build(), [*arguments, "--json"])
    assert done.exit_code in {0, 1}, done.output
    return json.loads(done.stdout)


def shown(call: Callable[[Output], object]) -> Any:
    """The value that a command shows."""
    output = Kept()
    with suppress(SystemExit):
        call(output)
    return output.value


def keys(value: Any) -> list[str]:
    return list(value[0] if isinstance(value, list) else value)


@pytest.fixture(autouse=True)
def _nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VAR_DIR", "STATE_DIR"):
        monkeypatch.setenv(f"TIDEMARK_{name}", str(tmp_path))


@pytest.mark.parametrize(
    "command", ["status", "top", "describe clicks", "optimise plan clicks", "acls clicks --principal User:a"]
)
def test_keys_should_be_those_of_the_page(command: str) -> None:
    name = " ".join(word for word in command.split() if word not in {"clicks", "--principal", "User:a"})
    assert keys(run(*command.split())) == DOCUMENTED[name]


def test_the_picture_of_a_topology_should_be_named(tmp_path: Path) -> None:
    said = run("describe", "clicks", "--svg", str(tmp_path / "a.svg"))
    assert said == {"svg": str(tmp_path / "a.svg")}
    assert list(said) == DOCUMENTED["describe --svg"]


def test_keys_of_the_stack_should_be_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    record = StackRecord("id", 0.0, {"bootstrap_servers": "b:1"})
    monkeypatch.setattr(up.stack, "up", lambda *_, **__: Up(record, ("broker",)))
    monkeypatch.setattr(down.stack, "down", lambda *_, **__: 3)
    monkeypatch.setattr(jars.local_jars, "ensure", lambda name, _: [Path(f"/{name}.jar")])
    monkeypatch.setattr(doctor, "examine", lambda _: [Diagnosis("a", Health.OK, "b")])
    assert keys(shown(lambda output: up.start_stack(output, with_airflow=True))) == DOCUMENTED["up"]
    assert shown(down.stop_stack) == {"ended_processes": 3}
    assert shown(lambda output: jars.fetch_jars(["bench"], output, paths=False)) == {"bench": ["/bench.jar"]}
    assert keys(shown(doctor.show_diagnoses)) == DOCUMENTED["doctor"]


def test_keys_of_topics_and_lag_should_be_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (topics, lag):
        monkeypatch.setattr(module, "AdminClient", lambda _: None)
        monkeypatch.setattr(module, "named_plan", lambda plan, *_: plan)
        monkeypatch.setattr(module, "partition_counts", lambda *_: {"clicks": 1})
    monkeypatch.setattr(topics, "internal_topics", lambda *_: [])
    monkeypatch.setattr(topics, "ensure_user_topics", lambda *_: ["clicks"])
    monkeypatch.setattr(topics, "plan_changes", lambda *_: [TopicChange("t", "s", "", "1")])
    monkeypatch.setattr(topics, "apply_changes", lambda *_: None)
    monkeypatch.setattr(lag, "lag_of", lambda *_: [PartitionLag(TopicPartition("clicks", 0), None, 5, None)])
    for verb, call in (
        ("list", topics.list_topics),
        ("create", topics.create),
        ("plan", topics.plan),
        ("run", topics.run),
    ):
        assert keys(shown(lambda output, call=call: call("clicks", output))) == DOCUMENTED[f"topics {verb}"]  # type: ignore[misc]
    said = shown(lambda output: lag.show_lag("clicks", output))
    assert keys(said) == DOCUMENTED["lag"]
    assert said["partitions"] == [
        {"partition": "clicks[0]", "committed_offset": None, "end_offset": 5, "lag_offsets": None, "member": None}
    ]


@pytest.mark.parametrize(
    ("query_port", "existing", "is_listed"),
    [("0", [], True), ("-1", [], False), ("-1", ["clicks-endpoints"], True)],
)
def test_the_topic_of_addresses_should_be_listed_if_queries_are_answered_or_it_exists(
    monkeypatch: pytest.MonkeyPatch, query_port: str, existing: list[str], is_listed: bool
) -> None:
    monkeypatch.setenv("TIDEMARK_QUERY_PORT", query_port)
    monkeypatch.setattr(topics, "AdminClient", lambda _: None)
    monkeypatch.setattr(topics, "named_plan", lambda plan, *_: plan)
    monkeypatch.setattr(topics, "partition_counts", lambda *_: dict.fromkeys(["clicks", *existing], 1))
    said = {row["topic"]: row for row in shown(lambda output: topics.list_topics("clicks", output))}
    assert ("clicks-endpoints" in said) is is_listed
    assert "clicks-commits" in said
    if is_listed:
        assert said["clicks-endpoints"] == {
            "topic": "clicks-endpoints",
            "partitions": 1 if existing else None,
            "needed_settings": {"cleanup.policy": "compact", "segment.ms": "3600000"},
        }


def test_keys_of_verdicts_should_be_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("a", Verdict.OK, "b")
    monkeypatch.setattr(check, "keep_verdicts", lambda *_: None)
    monkeypatch.setattr(check, "check_durability", lambda *_: [finding])
    assert (
        keys(shown(lambda output: check.durability("clicks", output, history=False))) == DOCUMENTED["check durability"]
    )
    monkeypatch.setattr(check, "past_verdicts", lambda *_: [SimpleNamespace(time_ms=1, finding=finding)])
    assert keys(shown(lambda output: check.lag("clicks", output, history=True))) == DOCUMENTED["check … --history"]
    body = {"findings": [], "ranges": {}, "records": 0, "seconds": 0.0, "page": None, "quarantine": None}
    monkeypatch.setattr(audit, "keep_verdicts", lambda *_: None)
    monkeypatch.setattr(audit, "run_audit", lambda *_, **__: AuditResult([finding], body))
    said = shown(lambda output: audit.run("clicks", None, output, whole=False))
    assert set(said) == set(DOCUMENTED["audit run"])


LETTER = StoredDeadLetter(
    TopicPartition("a-dlq", 1), 7, 5, b"k", b"v", [("h", b"x")], {"tidemark.reason": "unparsable"}
)


def test_keys_of_dead_letters_should_be_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = SimpleNamespace(application_id="a", read=lambda *_: iter([LETTER]), one=lambda *_: LETTER)
    monkeypatch.setattr(dlq, "_letters", lambda *_: letters)
    wanted = dlq.letter_filter(None, None, None, None, None)
    assert keys(shown(lambda output: dlq.list_letters("a", wanted, 5, output))) == DOCUMENTED["dlq list"]
    said = shown(lambda output: dlq.show("a", "1:7", output))
    assert keys(said) == DOCUMENTED["dlq show"]
    assert (said["letter"], said["headers"], said["details"]) == ("1:7", [["h", "x"]], {"reason": "unparsable"})
    done = SimpleNamespace(sent=2, left={"already replayed": 1})
    monkeypatch.setattr(dlq, "load", lambda _: SimpleNamespace(plan=lambda: None))
    monkeypatch.setattr(dlq.replaying, "DeadLetterReplay", lambda *_: SimpleNamespace(run=lambda *_: done))
    monkeypatch.setattr(dlq.replaying, "purge", lambda *_: {TopicPartition("a-dlq", 1): 4})
    assert shown(lambda output: dlq.replay("a", wanted, None, output)) == {
        "replayed": 2,
        "not_replayed": {"already replayed": 1},
    }
    assert shown(lambda output: dlq.purge("a", "now", None, output)) == {"deleted_offsets": {"a-dlq[1]": 4}}
    assert (DOCUMENTED["dlq replay"], DOCUMENTED["dlq purge"]) == (["replayed", "not_replayed"], ["deleted_offsets"])


def test_keys_of_savepoints_should_be_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = SimpleNamespace(savepoint_id="s", tasks=("0_0",), total_bytes=9, topology_version="1")
    repository = SimpleNamespace(
        application_id="a", location="/s", manifest=lambda _: manifest, ids=lambda: ["s"],
        newest_first=lambda _: ["s"],
        savepoint=lambda _: Savepoint("20260101T000000-abcdef", ("0_0",), None, "it is missing", 0),
    )  # fmt: skip
    monkeypatch.setattr(savepoint, "_repository", lambda _: repository)
    assert keys(shown(lambda output: savepoint.list_savepoints("a", output))) == DOCUMENTED["savepoint list"]
    found = SimpleNamespace(tasks=1, files=2, bytes=9, faults=())
    monkeypatch.setattr(savepoint.verification, "verify", lambda *_: found)
    assert keys(shown(lambda output: savepoint.verify("a", "s", output))) == DOCUMENTED["savepoint verify"]
    monkeypatch.setattr(savepoint.expiry, "expire", lambda *_: Expired((), 0, 0, None))
    assert keys(shown(lambda output: savepoint.expire("a", 1, None, output))) == DOCUMENTED["savepoint expire"]
    taken = SimpleNamespace(manifest=manifest, copied_bytes=1, held_ms=2)
    monkeypatch.setattr(savepoint, "SavepointCommand", lambda *_: SimpleNamespace(take=lambda: taken))
    for name, value in (("AdminClient", None), ("named_plan", None), ("task_ids", []), ("partition_counts", {})):
        monkeypatch.setattr(savepoint, name, lambda *_, value=value: value)
    assert keys(shown(lambda output: savepoint.take("clicks", output))) == DOCUMENTED["savepoint take"]


def test_keys_of_rows_should_be_those_of_the_page() -> None:
    assert [field.name for field in fields(StoreGrowth)] == DOCUMENTED["stores --history"]
    assert [*(field.name for field in fields(StoreSample)), "why"] == DOCUMENTED["stores"]
    assert list(inspect._form(load("clicks").plan(), 1, {}, {})) == DOCUMENTED["inspect"]
    assert [field.name for field in fields(Event)] == DOCUMENTED["events"]
    assert [*(field.name for field in fields(DrillReport)), "figures", "verdict", "claim"] == DOCUMENTED["drill run"]
    assert ["principal", *(field.name for field in fields(Acl))] == DOCUMENTED["acls"]


def test_keys_of_what_is_measured_should_be_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(lambda output: optimise.measure("shopping", 10, 0, output))
    assert keys(said) == DOCUMENTED["optimise measure"]
    assert said["measured"] is None
    plan = load("shopping").plan()
    monkeypatch.setattr(optimise, "_compared", lambda _: (plan, plan, PlanDifference((("a", "b"),), (), ())))
    monkeypatch.setattr("tidemark.devstack.measure.measure", lambda *_, **__: Measured(1000, 2.0, 40, 10))
    said = shown(lambda output: optimise.measure("shopping", 10, 0, output))
    assert said["measured"]["before"] == {"records_per_second": 500.0, "repartition_bytes": 40, "changelog_bytes": 10}


PLANS: dict[str, tuple[Any, Any]] = {
    "upgrade": (upgrade, UpgradePlan("a", "1", "2", (), (), {}, {}, (), ())),
    "rescale": (rescale, RescalePlan("a", 2, {0: 1}, {}, (), {}, {}, 0, ())),
    "rewind": (rewind, RewindPlan("a", 1, (), (), ())),
    "reset": (reset, ResetPlan("a", ResetTo.LATEST, StateAfter.KEEP, (), (), (), ())),
    "repair": (repair, RepairPlan("a", None, ())),
}


@pytest.mark.parametrize("noun", NOUNS)
def test_plans_and_runs_should_have_one_form(noun: str) -> None:
    module, plan = PLANS[noun]
    documented = {codes(cell)[0]: codes(value) for cell, value in rows("commands-json.md", "The plans of changes:")}
    planned = shown(lambda output: module._approval(output).show_plan(plan, "hint"))
    assert (keys(planned), planned["is_changed"]) == (DOCUMENTED[f"{noun} plan"], False)
    assert keys(planned["plan"]) == documented[noun]

    def carry_out(output: Output) -> None:
        approval = module._approval(output)
        assert approval(plan)
        approval.show_end(is_done=True, message="done")

    assert shown(carry_out) == {"is_changed": True, "plan": planned["plan"]}
    nothing = shown(lambda output: module._approval(output).show_end(is_done=True, message="it was done before"))
    assert nothing == {"is_changed": False, "plan": None}


def test_keys_of_restores_should_be_those_of_the_page() -> None:
    plan = RestorePlan("r", "a", "1", 1, None, (), (), {}, 0)
    assert list(json.loads(plan.to_json())) == DOCUMENTED["restore plan"]
    assert list(restore._form(plan, WorkspaceProgress(RestoreState.DONE))) == DOCUMENTED["restore run"]
    leftover = Leftover(LeftoverKind.STALE_HOLD, "a", Path("/x"), 1, 2, "why")
    (listed,) = clean._form(CleanPlan("a", (Judged(leftover, True, "it may"),)))
    assert list(listed) == DOCUMENTED["clean plan"] == DOCUMENTED["clean run"]
    assert as_json(replace(leftover, path=Path("/y")))["path"] == "/y"

"""What commands print: JSON and nothing else, or tables that can be read on any terminal and in a pipe."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.text import Text

from tidemark.cli.output import Output, Verbatim, as_json
from tidemark.listing import Listing, column_widths
from tidemark.names import TaskId, TopicPartition
from tidemark.verdict import Verdict

NAME = "patient-monitoring-heartbeats-per-patient-and-minute-changelog"
WHY = "the cleaner has not run since the topic was created, because min.compaction.lag.ms is a week"


def listing(names: int = 2) -> Listing:
    made = Listing("topic", "verdict", "offsets", "why", right=("offsets",), title="compaction of patient-monitoring")
    for number in range(names):
        made.add(f"{NAME}-{number}", Text("failed", style="red"), "1,000", WHY)
    return made


def rendered(view: object, width: int, *, terminal: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    console.print(view)
    return console.file.getvalue()


def unfolded(text: str) -> str:
    """The text without frames, padding and line ends, as it was before it was folded."""
    return "".join(character for character in text if character not in " \n│┃┏┓┡┩└┘━─┳╇┴")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_should_be_cut_however_narrow_the_terminal_is(width: int) -> None:
    text = rendered(listing(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for part in (f"{NAME}-0", f"{NAME}-1", "failed", "1,000"):
        assert part in unfolded(text)


def test_a_terminal_that_is_wide_enough_should_get_a_table() -> None:
    lines = rendered(listing(), 200).splitlines()
    (row,) = [line for line in lines if f"{NAME}-0" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [f"{NAME}-0", "failed", "1,000", WHY]


def test_a_terminal_that_is_too_narrow_should_get_a_block_for_each_row() -> None:
    lines = rendered(listing(), 60).splitlines()
    assert lines[0].strip() == "compaction of patient-monitoring"
    assert [line.split()[0] for line in lines if line.startswith(("topic", "verdict", "offsets", "why"))] == [
        "topic", "verdict", "offsets", "why", "topic", "verdict", "offsets", "why",
    ]  # fmt: skip


def test_text_should_wrap_between_words_before_a_table_becomes_blocks() -> None:
    made = Listing("verdict", "why")
    made.add("failed", WHY)
    text = rendered(made, 60)
    assert "┃ verdict ┃" in text
    assert all(word in text for word in WHY.split())


@pytest.mark.parametrize(
    ("sizes", "available", "widths"),
    [
        # All fit.
        ([(5, 5), (20, 40)], 45, [5, 40]),
        # The long text gives way, down to its least width.
        ([(5, 5), (20, 40)], 44, [5, 39]),
        ([(5, 5), (20, 40)], 25, [5, 20]),
        ([(5, 5), (20, 40)], 24, None),
        # Who lacks little gets it first, and the others share the rest.
        ([(15, 18), (20, 40), (20, 40)], 68, [18, 25, 25]),
        ([], 10, []),
    ],
)
def test_columns_should_share_what_is_there(
    sizes: list[tuple[int, int]], available: int, widths: list[int] | None
) -> None:
    assert column_widths(sizes, available) == widths


@pytest.mark.parametrize(("width", "is_table"), [(29, True), (28, False)])
def test_a_heading_may_wrap_where_its_column_is_narrow(width: int, is_table: bool) -> None:
    made = Listing("current windows", "pulses in them", "last commit")
    made.add("1", "2", "3")
    text = rendered(made, width)
    # Words of seven, six and six letters, two spaces for each, and four lines.
    assert ("┃" in text) is is_table
    assert "…" not in text


def test_text_should_have_twenty_characters_before_a_table_becomes_blocks() -> None:
    made = Listing("why")
    made.add("a b c d e f g h i j k l m n o p q r s t u v w x y z")
    assert "┃" in rendered(made, 24)
    assert "┃" not in rendered(made, 23)


def test_a_pipe_should_get_one_plain_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    Output().show(None, listing(), Verbatim("x" * 300), WHY * 5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "compaction of patient-monitoring"
    assert lines[1].split() == ["topic", "verdict", "offsets", "why"]
    assert lines[2] == f"{NAME}-0  failed     1,000  {WHY}"
    assert lines[4:] == ["x" * 300, WHY * 5]


def test_what_looks_like_markup_should_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    made = Listing("store")
    made.add("[red]counts[/red]")
    Output().show(None, made, "topic[0] and [bold]")
    assert capsys.readouterr().out.splitlines() == ["store", "[red]counts[/red]", "topic[0] and [bold]"]


def test_what_looks_like_an_emoji_should_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Output().show(None, "key: user:100:eu")
    assert capsys.readouterr().out.splitlines() == ["key: user:100:eu"]


def test_json_should_hold_numbers_that_are_none_as_topics_do(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).show({"mean": math.nan, "most": math.inf, "least": -math.inf, "sum": 0.5})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == {"mean": "NaN", "most": "Infinity", "least": "-Infinity", "sum": 0.5}


def test_json_should_be_all_that_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.message("half of it is done")
    output.people(listing())
    output.note("some of it is missing")
    output.show({"a": 1}, listing())
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"a": 1}
    assert shown.err.splitlines() == ["half of it is done", "some of it is missing"]


def test_people_should_get_messages_with_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.message("half of it is done")
    output.note("some of it is missing")
    output.show({"a": 1}, "done")
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["half of it is done", "done"]
    assert shown.err.splitlines() == ["some of it is missing"]


def test_a_program_that_cannot_answer_should_be_told_before_anything_is_done() -> None:
    with pytest.raises(typer.BadParameter, match="give --yes, too"):
        Output(as_json=True, yes=False)
    assert Output(as_json=True, yes=True).confirm("really?")


class Kind(Enum):
    OPEN = "open"


@dataclass(frozen=True)
class Inner:
    place: TopicPartition
    kind: Kind


def test_values_should_have_one_form_in_json() -> None:
    value = {
        TaskId(0, 1): (Inner(TopicPartition("t", 2), Kind.OPEN), Verdict.OK, None),
        "names": {"b", "a"},
        "path": Path("/a/b"),
    }
    assert as_json(value) == {
        "0_1": [{"place": "t[2]", "kind": "open"}, "ok", None],
        "names": ["a", "b"],
        "path": "/a/b",
    }
    with pytest.raises(TypeError, match="a bytes has no form in JSON"):
        as_json(b"x")


def test_a_row_should_have_a_cell_for_each_heading() -> None:
    with pytest.raises(ValueError, match="1 cells for the 2 headings a, b"):
        Listing("a", "b").add("x")


def test_every_table_of_a_command_should_be_a_listing() -> None:
    include = Path(__file__).parents[3] / "include"
    drawing = [
        str(file.relative_to(include))
        for folder in ("tidemark", "demo")
        for file in (include / folder).rglob("*.py")
        if "rich.table" in file.read_text(encoding="utf-8")
    ]
    assert drawing == ["tidemark/listing.py"]

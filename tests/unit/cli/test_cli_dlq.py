"""`tidemark dlq` prints records that any producer may have written, so it must escape control characters."""

from __future__ import annotations

import json

import pytest

from tidemark.cli import dlq
from tidemark.cli.output import Output
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters.reader import DeadLetterFilter, StoredDeadLetter

TITLE = "\x1b]0;owned\x07"
SUMMARY = {
    "tidemark.reason": f"unparsable{TITLE}",
    "tidemark.topic": f"in{TITLE}",
    "tidemark.partition": "0",
    "tidemark.error": f"no row: {TITLE}",
    "tidemark.traceback": f"line 1\nline 2 {TITLE}",
}
LETTER = StoredDeadLetter(
    TopicPartition("app-dlq", 0),
    7,
    1_700_000_000_000,
    TITLE.encode(),
    f"{TITLE}\nx".encode() + b"\xff" * 5000,
    ((f"h{TITLE}", TITLE.encode()), ("none", None)),
    SUMMARY,
)


class Letters:
    """Dead letters of which there is one."""

    def read(self, wanted, limit):
        return [LETTER]

    def one(self, partition, offset):
        return LETTER


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    monkeypatch.setattr(dlq, "_letters", lambda *_: Letters())


def controls(text: str) -> set[str]:
    return {one for one in text if not one.isprintable()} - {"\n"}


def test_should_list_nothing_that_controls_a_terminal(capsys):
    dlq.list_letters("app", DeadLetterFilter(), 100, Output())
    shown = capsys.readouterr().out
    assert controls(shown) == set()
    assert "\\x1b]0;owned\\x07" in shown


def test_should_show_nothing_that_controls_a_terminal_and_keep_the_lines_of_a_traceback(capsys):
    dlq.show("app", "0:7", Output())
    shown = capsys.readouterr().out
    assert controls(shown) == set()
    for line in (
        "tidemark.traceback: line 1\nline 2 \\x1b]0;owned\\x07\n",
        "header h\\x1b]0;owned\\x07: \\x1b]0;owned\\x07\n",
        "header none: —\n",
        "key: \\x1b]0;owned\\x07\n",
        "value: \\x1b]0;owned\\x07\\nx\\xff",
        f"({len(LETTER.value or b'')} bytes)\n",
    ):
        assert line in shown


def test_should_give_a_program_the_text_as_it_is(capsys):
    dlq.show("app", "0:7", Output(as_json=True))
    assert json.loads(capsys.readouterr().out)["key"] == TITLE

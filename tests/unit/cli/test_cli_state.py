"""What `tidemark state` prints for people."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.cli.output import Output
from tidemark.cli.state import show_changes, show_key
from tidemark.client import Change, Result, StoreClient


class Watched:
    """A store with one change."""

    def __init__(self, key: bytes, value: object) -> None:
        self._change = Change(key, {"v": value}, None, None, "0_0:1", "0_0:1")

    def watch(self, key, *, after):
        return [self._change]


class Empty:
    """A store without keys."""

    name = "totals"
    only_entry = StoreClient.only_entry

    def get_many(self, keys):
        return Result(pa.table({"key": [], "value": []}), (), "")


def test_should_name_a_key_that_does_not_exist(capsys):
    for as_json in (False, True):
        with pytest.raises(SystemExit, match="1"):
            show_key(Empty(), b"customer-9\x07", Output(as_json=as_json))
        assert capsys.readouterr().err == "no key 0x637573746f6d65722d3907 in store totals\n"


def test_should_print_nothing_that_controls_a_terminal(capsys):
    for key, value, shown in (
        (b"k\xc3\xa4", "a b", "kä  v=a b"),
        (b"\x1b[2J", "\x1b]0;x\x07", "0x1b5b324a  v=0x1b5d303b7807"),
        (b"a\nb", "\ud800", "0x610a62  v=0xeda080"),
    ):
        show_changes(Watched(key, value), None, None, None, Output())
        assert capsys.readouterr().out == f"{shown}\n"

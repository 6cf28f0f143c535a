"""The processors in `docs/processors.md` run, and do what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from tests.support.batches import Batches

from tidemark.tasks.operators.process import ProcessOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, Process, StoreKind, StoreSpec

PAGE = Path(__file__).parents[4] / "docs" / "processors.md"
SOURCES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
AMOUNT = Column("amount", "BIGINT")


def columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name, kind in types.items())


def processing(name: str, store: StoreSpec, emitted: tuple[Column, ...], is_batched: bool) -> Batches:
    node = Process("PROC", ("in",), emitted, (store,), f"processors_page:{name}", is_batched, False)
    return Batches(lambda: ProcessOperator(node, 0), node.stores)


def rows(*given: tuple[str | None, int, int]) -> pa.Table:
    keys, times, amounts = zip(*given, strict=True)
    return pa.table([keys, times, range(len(given)), [False] * len(given), amounts], rows_schema([AMOUNT]))


@pytest.fixture(autouse=True)
def page(monkeypatch):
    module = ModuleType("processors_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for source in SOURCES:
        exec(source, module.__dict__)


def test_should_keep_the_examples_short():
    assert len(SOURCES) == 3
    assert all(len(source.splitlines()) < 40 for source in SOURCES)


def test_should_print_each_record_and_forward_nothing(capsys):
    node = Process("PROC", ("in",), (), (), "processors_page:Print", False, False)
    emitted = Batches(lambda: ProcessOperator(node, 0), ()).run(rows(("a", 1, 7), (None, 2, 8)), newest_ms=2)
    assert capsys.readouterr().out.splitlines() == ["a {'amount': 7}", "None {'amount': 8}"]
    assert emitted.rows.num_rows == 0


def test_should_report_once_that_a_sensor_is_silent_and_once_that_it_is_back():
    store = StoreSpec(
        "sensors", StoreKind.KEY_VALUE, None, None, columns=columns(seen_ms="BIGINT", is_silent="BOOLEAN")
    )
    node = processing("Silence", store, columns(state="STRING", since_ms="BIGINT"), False)

    def summary(*records: tuple[str, int, int]) -> list[tuple[str, str, int]]:
        found = node.run(rows(*records), newest_ms=max(ts for _, ts, _ in records)).rows.to_pylist()
        node.restart()
        return [(r["__k"], r["state"], r["since_ms"]) for r in found]

    assert summary(("a", 1_000, 1), ("b", 1_000, 1)) == []
    assert summary(("b", 31_000, 1)) == []
    assert summary(("b", 41_000, 1)) == [("a", "silent", 1_000)]
    assert summary(("b", 55_000, 1)) == []
    assert summary(("a", 56_000, 1)) == [("a", "back", 1_000)]


def test_should_sum_per_key_over_batches():
    store = StoreSpec("totals", StoreKind.KEY_VALUE, None, None, columns=columns(total="BIGINT"))
    node = processing("Totals", store, columns(total="BIGINT"), True)
    node.run(rows(("a", 1, 2), ("b", 2, 5)), newest_ms=2)
    node.restart()
    assert node.run(rows((None, 3, 7)), newest_ms=3).rows.num_rows == 0
    emitted = node.run(rows(("a", 3, 10), (None, 3, 7), ("a", 4, 1)), newest_ms=4).rows.to_pylist()
    assert [(r["__k"], r["__ts"], r["total"]) for r in emitted] == [("a", 4, 13)]

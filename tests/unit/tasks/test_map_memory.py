"""SQL after a stateful node stays within its memory: a large batch is computed in parts, and too large a row is named."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from tests.support.map_memory import limit_of

from tidemark.errors import BufferFull
from tidemark.tasks.operator import BatchTime
from tidemark.tasks.operators.map import MapOperator
from tidemark.tasks.rows import rows_schema
from tidemark.topology.plan import Column, Map

LIMIT = 16 << 20


COLUMNS = (Column("s", "STRING"), Column("i", "INT"))


SELECTED = (("s", "concat(s, s)"), ("i", "i + 1"))


NODE = Map("MAP-7", ("in",), COLUMNS, (), "i % 2 = 0", SELECTED, "concat(s, 'x')")


def mapped(rows, memory_bytes=LIMIT):
    """`rows` are texts and numbers, in their order."""
    count = len(rows)
    given = {
        "__k": ["key"] * count, "__ts": list(range(count)), "__seq": list(range(count)), "__deleted": [False] * count,
        "s": [text for text, _ in rows], "i": [number for _, number in rows],
    }  # fmt: skip
    schema = rows_schema(COLUMNS)
    table = pa.table({name: pa.array(given[name], schema.field(name).type) for name in schema.names}, schema=schema)
    return MapOperator(NODE, COLUMNS, memory_bytes).run([table], {}, BatchTime(0, 0, 0)).rows


def test_should_return_the_same_rows_in_order_when_a_batch_needs_more_than_its_memory():
    drawn = random.Random(11)
    rows = [(chr(97 + n % 26) * drawn.choice([1, 1000, 400_000]), n) for n in range(300)]
    assert sum(len(text) for text, _ in rows) > 2 * LIMIT
    found = mapped(rows)
    kept = [(text, n) for text, n in rows if n % 2 == 0]
    assert found.column("__seq").to_pylist() == [n for _, n in kept]
    assert found.column("s").to_pylist() == [text + text for text, _ in kept]
    assert found.column("i").to_pylist() == [n + 1 for _, n in kept]
    assert found.column("__k").to_pylist() == [f"{text}x" for text, _ in kept]


def test_should_name_node_and_setting_when_one_row_needs_more_memory():
    with pytest.raises(BufferFull, match=r"MAP-7: .* raise TIDEMARK_SQL_MEMORY_BYTES"):
        mapped([("a", 0), ("b" * (2 * LIMIT), 2)])


@pytest.mark.parametrize("memory_bytes", [LIMIT, 100 << 20])
def test_should_use_the_given_memory_limit_and_write_no_files(memory_bytes):
    made = MapOperator(NODE, COLUMNS, memory_bytes)
    assert limit_of(made) == f"{memory_bytes >> 20}.0 MiB"
    assert made._session.sql("select current_setting('temp_directory')").fetchall() == [("",)]

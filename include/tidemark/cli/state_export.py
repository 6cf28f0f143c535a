"""Writes a whole store to a Parquet file, with its positions and a bar for the progress."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.progress import BarColumn, Progress, TextColumn

from tidemark.cli.output import Output, Verbatim
from tidemark.client import StoreClient
from tidemark.clock import wall_clock_ms
from tidemark.queries.answer_form import META
from tidemark.queries.position import Position, position_token

TASK = "task"
"""The first column of the file; the others are those of an answer."""


def export_store(asked: StoreClient, path: Path, output: Output) -> None:
    """Write the file, or leave what was there and raise what the client raises. Blocks.

    A symbolic link stays, and the file that it names is written. Raises a usage error, before anything is read, if there is
    something other than a file at the path, such as a folder or a device.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise typer.BadParameter(f"{path} is not a file; name a file, which is replaced", param_hint="--parquet")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        records, positions = _write(asked, temporary, output)
        temporary.replace(path)
    except OSError as error:
        raise typer.BadParameter(
            f"{path} cannot be written: {error.strerror or error}", param_hint="--parquet"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    value = {
        "file": str(path),
        "records": records,
        "position": position_token(positions),
        "positions": [position.to_dict() for position in positions],
    }
    output.show(value, Verbatim(f"{path}: {records:,} records at {position_token(positions)}"))


def _write(asked: StoreClient, path: Path, output: Output) -> tuple[int, list[Position]]:
    positions: list[Position] = []
    records = 0
    with ExitStack() as open_writer, _bar(output) as progress:
        writer: pq.ParquetWriter | None = None
        for task in asked.tasks():
            with asked.contents(task) as contents:
                positions.append(contents.position)
                if writer is None:
                    schema = pa.schema([pa.field(TASK, pa.string()), *contents.schema])
                    writer = open_writer.enter_context(pq.ParquetWriter(path, schema))
                bar = progress.add_task(f"{asked.name}  {task}", total=contents.approximate_count or 1, records=0)
                written = 0
                for batch in contents.batches:
                    tasks = pa.array([task] * batch.num_rows, pa.string())
                    writer.write_batch(pa.record_batch([tasks, *batch.columns], schema=schema))
                    written += batch.num_rows
                    progress.update(bar, completed=written, records=written)
                progress.update(bar, total=written or 1, completed=written or 1, records=written)
                records += written
        if writer is not None:
            facts = {
                "application_id": asked.client.application_id,
                "store": asked.name,
                "written_at_ms": wall_clock_ms(),
                "position": position_token(positions),
                "positions": [position.to_dict() for position in positions],
            }
            writer.add_key_value_metadata({META.decode(): json.dumps(facts)})
    return records, positions


@contextmanager
def _bar(output: Output) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[records]:>12,} records"),
    )
    with Progress(*columns, console=output.progress_console()) as progress:
        yield progress

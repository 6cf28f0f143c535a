"""Show the contents of an application's stores at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import typer

from tidemark.cli.output import Output, View, as_json, console
from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.events.progress import RichRestoreListener
from tidemark.listing import Listing
from tidemark.names import TaskId
from tidemark.operations.context import OperationContext
from tidemark.operations.copy_sources import past_sources
from tidemark.operations.disk_space import require_room_to_build
from tidemark.operations.rewind.build import PointInTimeBuilder, PointInTimeState
from tidemark.operations.times import format_time, parse_time
from tidemark.settings import Settings
from tidemark.store_rows import StoreRow, rows_of, shown_value
from tidemark.stores.directory import folder_of
from tidemark.stores.rocksdb import opened
from tidemark.stream_times import NO_STREAM_TIME
from tidemark.temporary_folder import temporary_folder
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load

Found = dict[tuple[TaskId, str], list[StoreRow]]
"""Rows by task and store."""


@dataclass(frozen=True)
class Selected:
    """The rows that are shown: of one store or all, with one key or a prefix, and how many; 0 means all."""

    store: str | None
    key: str | None
    prefix: str
    limit: int

    def has(self, row: StoreRow) -> bool:
        """Return whether the row has the wanted key."""
        return self.key in (None, row.key) and row.key.startswith(self.prefix)


def show_point_in_time(topology: str, at: str, out: Path | None, selected: Selected, output: Output) -> None:
    """Build the stores as they were at a time in another folder, and show them. Blocks."""
    try:
        at_ms = parse_time(at, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from error
    settings = Settings.load()
    plan = load(topology).plan()
    _require_store(plan, selected.store)
    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists; give a folder that does not", param_hint="--out")
    messages = console(stderr=True)
    context = OperationContext.of(plan, settings, past_sources(plan, settings), wall_clock_ms)
    context.require_has_run()
    with temporary_folder(settings.state_dir, f"{plan.application_id}-inspect") as temporary:
        folder = out or temporary
        evidence = context.evidence
        require_room_to_build(evidence.witnesses, evidence.facts(), folder, {spec.name for spec in plan.stores})
        with RichRestoreListener(messages) as listener:
            built = PointInTimeBuilder(context, listener, lambda _point: None, messages.print).build(at_ms, folder)
        found: Found = {}
        for task in built:
            for name, rows in _rows(plan, task, folder, selected):
                found[task, name] = list(islice(rows, selected.limit or None))
                if next(rows, None) is not None:
                    messages.print(f"{task}/{name}: there are more than {selected.limit} rows, see --limit")
    output.show(_form(plan, at_ms, built, found), *_views(plan, at_ms, built, found))
    if out is not None:
        messages.print(f"the copy is kept in {out}", soft_wrap=True)


def _require_store(plan: TopologyPlan, store: str | None) -> None:
    if store is None:
        return
    spec = next((spec for spec in plan.stores if spec.name == store), None)
    if spec is None:
        names = ", ".join(spec.name for spec in plan.stores) or "none"
        raise StartRefused(f"{plan.application_id} has no store {store}; it has {names}")
    if not spec.is_logged or spec.source_topic is not None:
        why = "it is not logged" if not spec.is_logged else f"its source topic {spec.source_topic} is its changelog"
        raise StartRefused(f"the earlier contents of store {store} are not known: {why}")


def _rows(
    plan: TopologyPlan, task: TaskId, folder: Path, selected: Selected
) -> Iterator[tuple[str, Iterator[StoreRow]]]:
    subtopology = plan.subtopologies[task.subtopology]
    for spec in subtopology.stores:
        path = folder_of(folder, task, spec.name)
        if path.exists() and selected.store in (None, spec.name):
            with opened(path) as held:
                yield spec.name, filter(selected.has, rows_of(subtopology, spec, held))


def _form(plan: TopologyPlan, at_ms: int, built: Mapping[TaskId, PointInTimeState], found: Found) -> dict[str, object]:
    tasks = [
        {
            "task": task,
            "batch": state.point_in_time.record.batch,
            "commit_time_ms": state.point_in_time.record.commit_time_ms,
            "source_offsets": state.point_in_time.record.end_offsets,
            "stream_time_ms": state.point_in_time.record.stream_times.task_ms,
        }
        for task, state in built.items()
    ]
    rows = [{"task": task, "store": name, **as_json(row)} for (task, name), held in found.items() for row in held]
    return {"application_id": plan.application_id, "at_ms": at_ms, "tasks": tasks, "rows": rows}


def _views(plan: TopologyPlan, at_ms: int, built: Mapping[TaskId, PointInTimeState], found: Found) -> Iterator[View]:
    title = f"{plan.application_id} at {format_time(at_ms)}"
    tasks = Listing("task", "batch", "committed", "source offsets", "stream time", title=title)
    for task, state in built.items():
        record = state.point_in_time.record
        offsets = ", ".join(f"{topic} {offset}" for topic, offset in record.end_offsets.items())
        stream_time = _format_stream_time(record.stream_times.task_ms)
        tasks.add(str(task), str(record.batch), format_time(record.commit_time_ms), offsets, stream_time)
    yield tasks
    for (task, name), rows in found.items():
        if not rows:
            yield f"{task}/{name}: no rows"
            continue
        fields = list(dict.fromkeys(field for row in rows for field in row.value))
        has_start, has_end = rows[0].window_start is not None, rows[0].window_end is not None
        headings = ["key", *["window start"] * has_start, *["window end"] * has_end, *fields]
        listing = Listing(*headings, title=f"{task}/{name}")
        for row in rows:
            times = [format_time(ms) for ms in (row.window_start, row.window_end) if ms is not None]
            listing.add(row.key, *times, *("" if v is None else shown_value(v) for v in map(row.value.get, fields)))
        yield listing


def _format_stream_time(stream_time_ms: int) -> str:
    return "—" if stream_time_ms == NO_STREAM_TIME else format_time(stream_time_ms)

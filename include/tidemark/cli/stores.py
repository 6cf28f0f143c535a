"""`tidemark stores`: how large the stores of an application are, and how fast they grow."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from tidemark.checks.store_growth import MEASURES, StoreGrowth, growth, history_path, read, sample_stores
from tidemark.settings import Settings
from tidemark.store_sizes import KnownSizes, StoreSize
from tidemark.topology_loader import load

_HEADINGS = {
    "keys": "keys ≈",
    "bytes_disk": "bytes on disk",
    "offsets_topic": "offsets",
    "bytes_topic": "bytes in topic",
}


def show_history(topology: str, *, as_json: bool) -> None:
    """Show the growth per hour between the stored samples."""
    application_id = load(topology).plan().application_id
    grown = growth(read(history_path(Settings.load().var_dir, application_id)))
    if as_json:
        print(json.dumps([asdict(row) for row in grown], indent=2))
    else:
        show_growth(grown, application_id)


def show_stores(topology: str, *, as_json: bool) -> None:
    """Show the sizes of all stores, and store them as a sample. Blocks."""
    settings = Settings.load()
    plan = load(topology).plan()
    sizes, samples = sample_stores(plan, settings)
    if as_json:
        rows = [asdict(sample) | {"why": whys(size)} for sample, size in zip(samples, sizes, strict=True)]
        print(json.dumps(rows, indent=2))
    else:
        show(sizes, plan.application_id)


def whys(row: StoreSize) -> dict[str, str]:
    """Return the numbers of a row that are not known, with the reasons."""
    numbers: dict[str, KnownSizes] = {name: getattr(row, name) for name in MEASURES}
    return {name: number.why for name, number in numbers.items() if number.value is None}


def show(sizes: list[StoreSize], application_id: str) -> None:
    """Print one row per copy of a store."""
    table = _table(f"stores of {application_id}")
    for row in sizes:
        table.add_row(str(row.task), row.store, row.holder or "—", *(str(getattr(row, name)) for name in MEASURES))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "keys are RocksDB's estimate; offsets include transaction markers and compacted records; "
        "bytes in the topic are those of one replica"
    )
    for why in sorted({why for row in sizes for why in whys(row).values() if ":" in why}):
        console.print(why, markup=False)


def show_growth(grown: list[StoreGrowth], application_id: str) -> None:
    """Print the growth per hour, or that there are no samples yet."""
    console = Console(highlight=False)
    if not grown:
        console.print(f"no samples of {application_id} yet: `tidemark stores` takes one each time it runs")
        return
    table = _table(f"growth per hour of the stores of {application_id}")
    table.add_column("samples", justify="right")
    table.add_column("hours", justify="right")
    for row in grown:
        rates = (_rate(getattr(row, name)) for name in MEASURES)
        table.add_row(row.task, row.store, row.holder or "—", *rates, str(row.samples), f"{row.hours:.2f}")
    console.print(table)
    console.print("—: known at fewer than two times; `tidemark stores` takes a sample each time it runs")


def _rate(per_hour: float | None) -> str:
    return "—" if per_hour is None else f"{per_hour:+,.0f}"


def _table(title: str) -> Table:
    table = Table("task", "store", "holder", title=title)
    for name in MEASURES:
        table.add_column(_HEADINGS[name], justify="right")
    return table

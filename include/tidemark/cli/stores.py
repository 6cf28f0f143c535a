"""Show how large the stores of an application are, and how fast they grow."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.checks.store_growth import MEASURES, StoreGrowth, growth, history_path, read, sample_stores
from tidemark.cli.output import Output, View, as_json
from tidemark.listing import Listing
from tidemark.settings import Settings
from tidemark.store_sizes import KnownSizes, StoreSize
from tidemark.topology_loader import load

_HEADINGS = {
    "keys": "keys ≈",
    "bytes_disk": "bytes on disk",
    "offsets_topic": "offsets",
    "bytes_topic": "bytes in topic",
}
_NUMBERS = tuple(_HEADINGS[name] for name in MEASURES)


def show_history(topology: str, output: Output) -> None:
    """Show the growth per hour between the stored samples."""
    application_id = load(topology).plan().application_id
    grown = growth(read(history_path(Settings.load().var_dir, application_id)))
    output.show(grown, *_growth_views(grown, application_id))


def show_stores(topology: str, output: Output) -> None:
    """Show the sizes of all stores, and store them as a sample. Blocks."""
    settings = Settings.load()
    plan = load(topology).plan()
    sizes, samples = sample_stores(plan, settings)
    rows = [
        as_json(sample) | {"is_old": size.is_old, "why": _whys(size)}
        for sample, size in zip(samples, sizes, strict=True)
    ]
    output.show(rows, *_size_views(sizes, plan.application_id))


def _whys(row: StoreSize) -> dict[str, str]:
    """Return the numbers of a row that are not known, with the reasons."""
    numbers: dict[str, KnownSizes] = {name: getattr(row, name) for name in MEASURES}
    return {name: number.why for name, number in numbers.items() if number.value is None}


def _size_views(sizes: list[StoreSize], application_id: str) -> Iterator[View]:
    """Yield one row per copy of a store, and what the numbers mean."""
    listing = Listing("task", "store", "holder", *_NUMBERS, right=_NUMBERS, title=f"stores of {application_id}")
    for row in sizes:
        holder = f"{row.holder}, old" if row.is_old else row.holder or "—"
        listing.add(str(row.task), row.store, holder, *(str(getattr(row, name)) for name in MEASURES))
    yield listing
    yield (
        "keys are RocksDB's estimate; offsets include transaction markers and compacted records; "
        "bytes in the topic are those of one replica"
    )
    if any(row.is_old for row in sizes):
        yield "old: another instance here has processed the task since; the copy counts in no sum and no history"
    yield from sorted({why for row in sizes for why in _whys(row).values() if ":" in why})


def _growth_views(grown: list[StoreGrowth], application_id: str) -> Iterator[View]:
    """Yield the growth per hour, or that there are no samples yet."""
    if not grown:
        yield f"no samples of {application_id} yet: `tidemark stores` takes one each time it runs"
        return
    numbers = (*_NUMBERS, "samples", "hours")
    title = f"growth per hour of the stores of {application_id}"
    listing = Listing("task", "store", "holder", *numbers, right=numbers, title=title)
    for row in grown:
        rates = (_rate(getattr(row, name)) for name in MEASURES)
        listing.add(row.task, row.store, row.holder or "—", *rates, str(row.samples), f"{row.hours:.2f}")
    yield listing
    yield "—: known at fewer than two times; `tidemark stores` takes a sample each time it runs"


def _rate(per_hour: float | None) -> str:
    return "—" if per_hour is None else f"{per_hour:+,.0f}"

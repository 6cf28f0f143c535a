"""Rates of rebuilding state on this machine, as drills have measured them, for the estimates of restore plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.database import FactsDatabase
from tidemark.operations.drill_history.report import RebuildMethod, StoreDrill
from tidemark.operations.drill_history.table import past_drills
from tidemark.operations.times import format_time
from tidemark.recovery.candidates import MEASURED, Rates
from tidemark.settings import Settings

FEWEST_OFFSETS = 10_000
FEWEST_BYTES = 1_000_000
"""The least that a drill must have read to give a rate: with less, most of the time is spent on connecting and opening."""

_OFFSETS, _BYTES = "changelog_offsets_per_s", "copied_bytes_per_s"


@dataclass(frozen=True)
class MeasuredRates:
    """The rates of one application, and a line that says where each comes from."""

    rates: Rates
    summary: str


def rates_of(stores: Iterable[StoreDrill], fetched: Iterable[tuple[int, float]]) -> dict[str, float]:
    """Return the fields of `Rates` that a drill has measured.

    `fetched` are the bytes of a savepoint's store and the seconds taken.

    Several stores are rebuilt at the same time, so each rate is that of one store while others are built.
    """
    whole = [store for store in stores if store.way is RebuildMethod.CHANGELOG and store.keys]
    measured = {
        _OFFSETS: _rate(
            [(store.end_offset - store.from_offset, store.seconds) for store in whole], fewest=FEWEST_OFFSETS
        ),
        _BYTES: _rate(list(fetched), fewest=FEWEST_BYTES),
    }
    return {name: rate for name, rate in measured.items() if rate is not None}


def _rate(measured: Sequence[tuple[int, float]], *, fewest: int) -> float | None:
    """Return the amount per second; None if the amount is too small."""
    amount, seconds = sum(one for one, _ in measured), sum(seconds for _, seconds in measured)
    return round(amount / seconds, 1) if amount >= fewest and seconds > 0 else None


def newest_rates(reports: Iterable[Mapping[str, Any]]) -> MeasuredRates:
    """Do `last_rates` for drill reports as JSON, the newest first. Reads nothing."""
    found: dict[str, tuple[float, str]] = {}
    for report in reports:
        for name, rate in report.get("rates", {}).items():
            found.setdefault(
                name, (rate, f"measured by the drill {report['drill_id']}, {format_time(report['ended_ms'])}")
            )
    rates = replace(MEASURED, **{name: rate for name, (rate, _) in found.items()})
    sources = [found[name][1] if name in found else "assumed, no drill has measured it" for name in (_OFFSETS, _BYTES)]
    return MeasuredRates(rates, format_rates(rates, *sources))


def format_rates(rates: Rates, offsets_from: str, bytes_from: str) -> str:
    """Format in one line what an estimate is based on."""
    offsets = f"{rates.changelog_offsets_per_s:,.0f} changelog offsets/s"
    copied = f"{rates.copied_bytes_per_s / 1e6:,.1f} MB/s of a savepoint"
    if offsets_from == bytes_from:
        return f"{offsets} and {copied} ({offsets_from})"
    return f"{offsets} ({offsets_from}), {copied} ({bytes_from})"


def last_rates(settings: Settings, application_id: str) -> MeasuredRates:
    """Return the newest rates that drills of an application measured, `MEASURED` if there are none. Blocks.

    Raises `FactsUnavailable`.
    """
    facts = FactsDatabase(settings)
    try:
        return newest_rates([drill.report for drill in past_drills(facts, application_id)])
    finally:
        facts.close()

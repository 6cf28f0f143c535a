"""`tidemark lag`: how far an application is behind its sources."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.lag import lag_of
from tidemark.kafka.topics import partition_counts
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.topology_loader import load


def show_lag(topology: str) -> None:
    """Show the committed offset, end offset, lag and owner of each source partition. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    found = lag_of(plan, partition_counts(admin, settings), admin, settings)
    table = Table(title=f"group {plan.application_id}")
    for heading in ("partition", "committed", "end", "lag", "member"):
        table.add_column(heading, justify="left" if heading in ("partition", "member") else "right")
    for row in found:
        committed = "—" if row.committed_offset is None else str(row.committed_offset)
        behind = "—" if row.lag_offsets is None else str(row.lag_offsets)
        table.add_row(str(row.partition), committed, str(row.end_offset), behind, row.member or "—")
    console = Console()
    console.print(table)
    known = [row.lag_offsets for row in found if row.lag_offsets is not None]
    console.print(f"total lag {sum(known)} offsets (transaction markers have offsets too)")

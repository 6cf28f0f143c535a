"""Show how far an application is behind its sources."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tidemark.cli.output import Output
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.lag import lag_of
from tidemark.kafka.topics import partition_counts
from tidemark.listing import Listing
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.topology_loader import load


def show_lag(topology: str, output: Output) -> None:
    """Show the committed offset, end offset, lag and owner of each source partition. Blocks."""
    settings = Settings.load()
    admin = AdminClient(librdkafka_config(settings))
    plan = named_plan(load(topology).plan(), settings, admin)
    found = lag_of(plan, partition_counts(admin, settings), admin, settings)
    numbers = ("committed", "end", "lag")
    listing = Listing("partition", *numbers, "member", right=numbers, title=f"group {plan.application_id}")
    for row in found:
        committed = "—" if row.committed_offset is None else str(row.committed_offset)
        behind = "—" if row.lag_offsets is None else str(row.lag_offsets)
        listing.add(str(row.partition), committed, str(row.end_offset), behind, row.member or "—")
    total = sum(row.lag_offsets for row in found if row.lag_offsets is not None)
    partitions = [
        {
            "partition": row.partition,
            "committed_offset": row.committed_offset,
            "end_offset": row.end_offset,
            "lag_offsets": row.lag_offsets,
            "member": row.member,
        }
        for row in found
    ]
    output.show(
        {"application_id": plan.application_id, "lag_offsets": total, "partitions": partitions},
        listing,
        f"total lag {total} offsets (transaction markers have offsets too)",
    )

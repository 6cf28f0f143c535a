"""Names of changelogs for contents that are written again. A used changelog is never written from its beginning again."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tidemark.names import changelog_topic
from tidemark.registry.description import Description, describe_state, with_generations
from tidemark.topology.plan import TopologyPlan


def next_generation(application_id: str, store: str, topics: Collection[str], recorded: int | None) -> int:
    """Return the first generation after the highest recorded one and after every existing changelog of that name.

    This skips topics that an attempt left which was killed; nothing refers to them.
    """
    name = re.compile(re.escape(changelog_topic(application_id, store)) + r"(?:-([1-9]\d*))?")
    known = [int(found[1] or 0) for topic in topics if (found := name.fullmatch(topic))]
    known += [] if recorded is None else [recorded]
    return max(known, default=-1) + 1


def with_new_changelogs(
    plan: TopologyPlan, found: Description, stores: Collection[str], existing: Mapping[str, int]
) -> Description:
    """Return `found` with a new changelog for each of `stores`; the topics are not created yet.

    `plan` is the module's, `existing` counts the partitions of all topics.
    """
    app, generations = found.application_id, {name: store.spec.generation for name, store in found.stores.items()}
    generations |= {name: next_generation(app, name, existing, found.last_generation(name)) for name in stores}
    return describe_state(with_generations(plan, generations), existing).continuing(found)

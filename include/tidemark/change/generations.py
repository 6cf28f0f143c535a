"""Names for contents that are written anew: a changelog that has ever been written is not written from its beginning again."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from tidemark.change.description import Description, describe_state, with_generations
from tidemark.names import changelog_topic
from tidemark.topology.plan import TopologyPlan


def next_generation(application_id: str, store: str, topics: Collection[str], recorded: int | None) -> int:
    """The first one behind the recorded one and behind every changelog of that name that exists.

    What an attempt that was killed has written lies in a topic that nothing names, and is passed over here.
    """
    name = re.compile(re.escape(changelog_topic(application_id, store)) + r"(?:-([1-9]\d*))?")
    known = [int(found[1] or 0) for topic in topics if (found := name.fullmatch(topic))]
    known += [] if recorded is None else [recorded]
    return max(known, default=-1) + 1


def with_new_changelogs(
    plan: TopologyPlan, found: Description, stores: Collection[str], existing: Mapping[str, int]
) -> Description:
    """What `found` becomes where each of `stores` has a new changelog; the topics are yet to be made.

    `plan` is the module's, `existing` counts the partitions of all topics.
    """
    app, generations = found.application_id, {name: store.spec.generation for name, store in found.stores.items()}
    generations |= {name: next_generation(app, name, existing, generations[name]) for name in stores}
    return replace(describe_state(with_generations(plan, generations), existing), routing=found.routing)

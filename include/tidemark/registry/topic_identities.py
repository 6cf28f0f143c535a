"""Comparison of topic ids: a topic that was deleted and created again is another topic (see invariant: topic identity).

The application's description keeps the ids that Kafka gave its topics. The functions here only compare the ids that
they are given; `Identities.lost` asks Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidemark.names import commits_topic, dlq_topic, events_topic, is_repartition_topic
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import TopologyPlan


class TopicUse(Enum):
    """The use that an application makes of a topic. The value is the wording used in messages."""

    OUTPUT = "output topic"
    SOURCE = "source topic"
    CHANGELOG = "changelog"
    REPARTITION = "repartition topic"
    COMMITS = "commits topic"

    @property
    def is_state(self) -> bool:
        """Whether the application's state depends on the topic: it is read again, or state is rebuilt from it."""
        return self is not TopicUse.OUTPUT


BEGIN_AGAIN = "`tidemark reset run NAME --to earliest --state empty` processes the sources again from their beginning"
"""The remedy that needs nothing but the source topics."""

CHANGELOG_REMEDY = (
    "`tidemark repair run NAME` writes the store to a new changelog, from a local store, a standby or a savepoint that "
    "is up to date with the last commit, or, with `--from source`, computed again from the source topics; otherwise "
    f"{BEGIN_AGAIN}"
)

BEGIN_WITHOUT_STATE = (
    "to begin again from the sources, delete the application's changelogs, its topics that end with -repartition, -commits and "
    "-topology, its state folders, and its consumer group (`tidemark kafka consumer-groups --delete --group APPLICATION_ID`), "
    "because a start would continue from its offsets; or give the topology another application id"
)
"""The remedy if it is no longer known what the last commits left behind."""

_WHAT_IS_LOST = {
    TopicUse.OUTPUT: "what was written to it",
    TopicUse.SOURCE: "the records that were processed, and their offsets now refer to other records",
    TopicUse.CHANGELOG: "the store's contents, which now exist only in local stores, standbys and savepoints",
    TopicUse.REPARTITION: "the records that no task had read yet",
    TopicUse.COMMITS: "the committed offsets, stream times and batches of the tasks",
}

_REMEDY = {
    TopicUse.OUTPUT: "no action is needed",
    TopicUse.SOURCE: (
        "create the topic if it is missing; then `tidemark reset run NAME --to earliest --state keep` adds the records "
        "that it holds now to the state, and `--state empty` computes the state from them alone"
    ),
    TopicUse.CHANGELOG: CHANGELOG_REMEDY,
    TopicUse.REPARTITION: (
        f"{BEGIN_AGAIN}; `--state keep` with the committed offsets continues without the lost records"
    ),
    TopicUse.COMMITS: BEGIN_WITHOUT_STATE,
}


@dataclass(frozen=True)
class LostTopic:
    """A topic whose id is not the one that the last commits recorded. `found_id` is None if no topic has this name now."""

    topic: str
    use: TopicUse
    known_id: str
    found_id: str | None

    @property
    def reason(self) -> str:
        """Return what happened to the topic and what was lost with it."""
        happened = (
            "was deleted"
            if self.found_id is None
            else f"was deleted and created again (its id is {self.found_id}, at the last commit it was {self.known_id})"
        )
        return f"{self.use.value} {self.topic} {happened}: this lost {_WHAT_IS_LOST[self.use]}"

    @property
    def remedy(self) -> str:
        """The command that repairs it."""
        return _REMEDY[self.use]


def topics_in_use(plan: TopologyPlan) -> dict[str, TopicUse]:
    """Return every topic that a plan reads or writes, except the one that holds the ids. `plan` has the names in use now."""
    app = plan.application_id
    uses: dict[str, TopicUse] = dict.fromkeys((dlq_topic(app), events_topic(app)), TopicUse.OUTPUT)
    for subtopology in plan.subtopologies:
        uses |= dict.fromkeys(subtopology.sink_topics, TopicUse.OUTPUT)
    for subtopology in plan.subtopologies:
        uses |= dict.fromkeys(subtopology.source_topics, TopicUse.SOURCE)
        uses |= {changelog_of(app, spec): TopicUse.CHANGELOG for spec in subtopology.stores if spec.has_changelog}
    uses |= {topic: TopicUse.REPARTITION for topic in uses if is_repartition_topic(app, topic)}
    uses[commits_topic(app)] = TopicUse.COMMITS
    return uses


def changed_topics(uses: Mapping[str, TopicUse], known: Mapping[str, str], found: Mapping[str, str]) -> list[LostTopic]:
    """Return the topics whose id is not the known one, outputs included. A topic without a known id is new, so not changed."""
    return [
        LostTopic(topic, use, known[topic], found.get(topic))
        for topic, use in uses.items()
        if topic in known and found.get(topic) != known[topic]
    ]


def lost_topics(uses: Mapping[str, TopicUse], known: Mapping[str, str], found: Mapping[str, str]) -> list[LostTopic]:
    """Return the changed topics that the application's state depends on."""
    return [each for each in changed_topics(uses, known, found) if each.use.is_state]


def format_lost(application_id: str, lost: Iterable[LostTopic]) -> str:
    """Return one message about all lost topics, with each remedy once."""
    listed = list(lost)
    reasons = "; ".join(each.reason for each in listed)
    remedies = "; ".join(dict.fromkeys(each.remedy for each in listed))
    return f"{application_id}: {reasons}. To repair it: {remedies}"


def _ask_nothing(_topics: Collection[str]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Identities:
    """The topic ids that the last commits recorded, by topic, and the function that asks Kafka for the ids of now.

    If no ids are known, nothing is compared.
    """

    known: Mapping[str, str] = field(default_factory=dict)
    ask: Callable[[Collection[str]], Mapping[str, str]] = _ask_nothing

    def lost(self, plan: TopologyPlan, among: Collection[str] | None = None) -> dict[str, LostTopic]:
        """Return the topics of the plan, or those in `among`, whose id is not the known one, by name.

        Blocks for one request.
        """
        uses = {
            topic: use
            for topic, use in topics_in_use(plan).items()
            if use.is_state and topic in self.known and (among is None or topic in among)
        }
        return {each.topic: each for each in lost_topics(uses, self.known, self.ask(list(uses)))}

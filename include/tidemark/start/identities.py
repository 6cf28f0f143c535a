"""Topics have identities (rule 27): one that was deleted and made again under its name is another topic.

The ids that Kafka gives topics are kept in the application's description. This module compares them; it reads nothing but
what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidemark.names import commits_topic, dlq_topic, events_topic, is_repartition_topic
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import TopologyPlan


class TopicUse(Enum):
    """What a topic is to the application. The value is how messages call it."""

    OUTPUT = "output topic"
    SOURCE = "source topic"
    CHANGELOG = "changelog"
    REPARTITION = "repartition topic"
    COMMITS = "commits topic"

    @property
    def is_state(self) -> bool:
        """Whether the application's state depends on it: it is read again, or state is rebuilt from it."""
        return self is not TopicUse.OUTPUT


BEGIN_AGAIN = (
    "`tidemark offsets reset NAME --to earliest --state empty` processes the sources again from their beginning"
)
"""The remedy that needs nothing but the sources."""

CHANGELOG_REMEDY = (
    "`tidemark changelog repair NAME` writes the store to a new changelog, from the local store, a standby or a savepoint that "
    f"is level with the last commit, or with `--from source` computed again; else {BEGIN_AGAIN}"
)

BEGIN_WITHOUT_STATE = (
    "to begin again from the sources, delete the application's changelogs, its topics that end with -repartition, -commits and "
    "-topology, its state folders, and its consumer group (`tidemark kafka consumer-groups --delete --group APPLICATION_ID`), "
    "whose offsets would be gone on from; or give the topology another application id"
)
"""The remedy where what the last commits left is not known any more."""

_WHAT_IS_LOST = {
    TopicUse.OUTPUT: "what was written to it",
    TopicUse.SOURCE: "the records that were processed, and their offsets mean other records now",
    TopicUse.CHANGELOG: "the store's contents, which nothing but local stores, standbys and savepoints holds now",
    TopicUse.REPARTITION: "the records in it that no task had read yet",
    TopicUse.COMMITS: "the tasks' offsets, stream times and batches as they were committed",
}

_REMEDY = {
    TopicUse.OUTPUT: "nothing is to be done",
    TopicUse.SOURCE: (
        "create the topic if it is gone; then `tidemark offsets reset NAME --to earliest --state keep` adds what it holds now "
        "to the state, and `--state empty` begins again with it"
    ),
    TopicUse.CHANGELOG: CHANGELOG_REMEDY,
    TopicUse.REPARTITION: (
        f"{BEGIN_AGAIN}; `--state keep` with the committed offsets goes on without the records that were lost"
    ),
    TopicUse.COMMITS: BEGIN_WITHOUT_STATE,
}


@dataclass(frozen=True)
class LostTopic:
    """A topic that is not the one that the last commits knew. `found_id` is None where there is none of its name."""

    topic: str
    use: TopicUse
    known_id: str
    found_id: str | None

    @property
    def reason(self) -> str:
        """What happened, and what is lost with it."""
        happened = (
            "was deleted"
            if self.found_id is None
            else f"was deleted and made again (its id is {self.found_id}, the last commit knew {self.known_id})"
        )
        return f"{self.use.value} {self.topic} {happened}: lost is {_WHAT_IS_LOST[self.use]}"

    @property
    def remedy(self) -> str:
        """The command that repairs it."""
        return _REMEDY[self.use]


def topics_in_use(plan: TopologyPlan) -> dict[str, TopicUse]:
    """Every topic that a plan reads or writes, but the one that holds the ids. `plan` has the names that are in use now."""
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
    """Topics whose id is not the known one, outputs included; a topic whose id nobody knew is new."""
    return [
        LostTopic(topic, use, known[topic], found.get(topic))
        for topic, use in uses.items()
        if topic in known and found.get(topic) != known[topic]
    ]


def lost_topics(uses: Mapping[str, TopicUse], known: Mapping[str, str], found: Mapping[str, str]) -> list[LostTopic]:
    """Those of the changed topics that are a fault of state."""
    return [each for each in changed_topics(uses, known, found) if each.use.is_state]


def format_lost(application_id: str, lost: Iterable[LostTopic]) -> str:
    """All of them in one message, each remedy once."""
    listed = list(lost)
    reasons = "; ".join(each.reason for each in listed)
    remedies = "; ".join(dict.fromkeys(each.remedy for each in listed))
    return f"{application_id}: {reasons}. To repair it: {remedies}"


def _ask_nothing(_topics: Collection[str]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Identities:
    """The ids that the last commits knew, by topic, and how to ask for those of now; nothing known, nothing is compared."""

    known: Mapping[str, str] = field(default_factory=dict)
    ask: Callable[[Collection[str]], Mapping[str, str]] = _ask_nothing

    def lost(self, plan: TopologyPlan, among: Collection[str] | None = None) -> dict[str, LostTopic]:
        """Topics of the plan that are not the known ones, by name; all, or those `among` them. Blocks for a round trip."""
        uses = {
            topic: use
            for topic, use in topics_in_use(plan).items()
            if use.is_state and topic in self.known and (among is None or topic in among)
        }
        return {each.topic: each for each in lost_topics(uses, self.known, self.ask(list(uses)))}

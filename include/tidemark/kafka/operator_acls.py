"""The smallest set of ACLs for the user who runs commands on a stopped application.

Pure: the names of the topics before and after a change are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.kafka.acls import Acl
from tidemark.kafka.topics import changelog_topics
from tidemark.names import (
    commits_topic,
    dlq_topic,
    events_topic,
    replays_transactional_id,
    topology_topic,
    transactional_id,
)
from tidemark.topology.plan import TopologyPlan


class Command(StrEnum):
    """A command that reads or changes a stopped application, by its name in `tidemark`.

    A noun alone stands for all its verbs.
    """

    RESTORE = "restore"
    FROM_SOURCE = "restore --from source"
    REWIND = "rewind"
    RESET = "reset"
    RESCALE = "rescale"
    UPGRADE = "upgrade"
    REPAIR = "repair"
    SHOW_SETTINGS = "topics plan"
    APPLY_SETTINGS = "topics run"
    LIST_LETTERS = "dlq list"
    REPLAY_LETTERS = "dlq replay"
    PURGE_LETTERS = "dlq purge"


_MOVING = frozenset({Command.REWIND, Command.RESET, Command.RESCALE, Command.UPGRADE, Command.REPAIR})
"""Commands that commit offsets and commit records in a transaction."""
_CREATING = _MOVING - {Command.REWIND}
"""Commands that may create topics for the state and write a new description of it."""
_SETTINGS_COMMANDS = frozenset({Command.SHOW_SETTINGS, Command.APPLY_SETTINGS})
"""Commands that read or change the settings of topics."""
_LETTER_COMMANDS = frozenset({Command.LIST_LETTERS, Command.REPLAY_LETTERS, Command.PURGE_LETTERS})
"""Commands that read, replay or delete dead letters."""
WITHOUT_DESCRIPTION = _LETTER_COMMANDS - {Command.REPLAY_LETTERS} | {Command.FROM_SOURCE}
"""Commands that need no rights to the description of the state."""

OPERATOR_GRANT = "`tidemark acls NAME --principal User:… --operator --running`"
"""The command that prints these ACLs."""

_IMPLIED_BY = {"Describe": ("Read", "Write", "Delete", "Alter"), "DescribeConfigs": ("AlterConfigs",)}
"""Operations that Kafka's StandardAuthorizer allows to whoever is allowed one of the others."""


@dataclass(frozen=True)
class TopicNames:
    """The names of an application's topics by their use. `sources` and `sinks` are the user's own topics.

    `tables` are the sources that are the changelogs of their tables.
    """

    sources: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    changelogs: frozenset[str] = frozenset()
    repartitions: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan: TopologyPlan) -> TopicNames:
        """Return the names of a plan's topics."""
        app, repartitions = plan.application_id, frozenset(plan.repartition_topics)
        return cls(
            frozenset(topic for s in plan.subtopologies for topic in s.source_topics) - repartitions,
            frozenset(topic for s in plan.subtopologies for topic in s.sink_topics) - repartitions,
            frozenset(changelog_topics(app, plan.stores)),
            repartitions,
            frozenset(store.source_topic for store in plan.stores if store.source_topic is not None),
        )

    def without(self, other: TopicNames) -> TopicNames:
        """Return the names that `other` does not have."""
        return TopicNames(*(getattr(self, kind) - getattr(other, kind) for kind in _KINDS))

    def only(self, topics: Collection[str]) -> TopicNames:
        """Return the names that are in `topics`."""
        return TopicNames(*(getattr(self, kind) & frozenset(topics) for kind in _KINDS))


_KINDS = ("sources", "sinks", "changelogs", "repartitions", "tables")


@dataclass(frozen=True)
class OperatorTopics:
    """The topics of an application before and after a change.

    `used` are the current topics, with those of the version that ran before an upgrade. `created` are those that a reset, an
    upgrade or a repair would create, and `rescaled` those that a rescale would create.
    """

    application_id: str
    used: TopicNames
    instances: int
    created: TopicNames = TopicNames()
    rescaled: TopicNames = TopicNames()

    def created_by(self, command: Command) -> TopicNames:
        """Return the topics that a command would create."""
        if command is Command.RESCALE:
            return self.rescaled
        return self.created if command in _CREATING else TopicNames()


def operator_acls(topics: OperatorTopics, commands: Iterable[Command]) -> list[Acl]:
    """Return the ACLs that these commands need, sorted by resource. Each is there once, with all its reasons in `why`."""
    found: dict[Acl, list[str]] = {}
    for command in commands:
        for acl in _of(topics, command):
            whys = found.setdefault(replace(acl, why=""), [])
            if acl.why not in whys:
                whys.append(acl.why)
    return sorted(
        replace(acl, why="; ".join(whys))
        for acl, whys in found.items()
        if not any(replace(acl, why="", operation=other) in found for other in _IMPLIED_BY.get(acl.operation, ()))
    )


def created_acls(created: TopicNames) -> list[Acl]:
    """Return the ACLs that a command needs for topics that it has created."""
    return sorted(acl for acl in _created(created) if acl.operation != "Create")


def _of(topics: OperatorTopics, command: Command) -> Iterator[Acl]:
    app, used = topics.application_id, topics.used
    if command in _LETTER_COMMANDS:
        yield from _letters(topics, command)
        return
    if command is Command.FROM_SOURCE:
        yield from _each(used.sources, "Read", "`--from source` computes the state from it")
        yield from _each(used.sources, "DescribeConfigs", "`--from source` checks whether it keeps all records")
        return
    yield from _each([topology_topic(app)], "Read", "the description of the state")
    if command in _SETTINGS_COMMANDS:
        internal = [*used.changelogs, *used.repartitions, *_own(app)]
        yield from _each([*internal, *used.sources], "Describe", "`topics plan` lists the topics")
        yield from _each(internal, "DescribeConfigs", "`topics plan` compares its settings")
        if command is Command.APPLY_SETTINGS:
            yield from _each(internal, "AlterConfigs", "`topics run` sets what differs")
        return
    yield from _each(used.sources, "Describe", "its end offsets are read")
    yield from _each(used.repartitions, "Describe", "its end offsets are read")
    yield from _each([commits_topic(app)], "Read", "commit records")
    yield from _each(used.changelogs, "Read", "the state is restored from it, and compared with it")
    yield from _each(used.changelogs, "DescribeConfigs", "its retention is read")
    yield Acl(
        "group", app, "Read" if command in _MOVING else "Describe", "its committed offsets, and that it has no members"
    )
    if command in _MOVING:
        yield from _moving(topics, command)
    if command in _CREATING:
        yield from _each([topology_topic(app)], "Write", "the description of the state")
        verified = [*used.changelogs, *used.repartitions, *_own(app)]
        yield from _each(verified, "DescribeConfigs", "its settings are verified when topics are created")
        yield from _created(topics.created_by(command))
    if command is Command.UPGRADE:
        yield from _each(used.tables, "DescribeConfigs", "a table is only read again from a topic that is compacted")
    if command is Command.RESCALE:
        yield from _each([commits_topic(app), dlq_topic(app)], "Alter", "more tasks need more partitions")
    if command is Command.RESET:
        yield from _each(used.repartitions, "Create", "`reset run` creates it again if it was deleted")
    if command in (Command.REWIND, Command.REPAIR):
        yield from _each(used.changelogs, "Write", "keys that differ are written to it")


def _moving(topics: OperatorTopics, command: Command) -> Iterator[Acl]:
    app, used = topics.application_id, topics.used
    yield from _each([*used.sources, *used.repartitions], "Read", "its offsets are committed")
    yield from _each([*used.sinks, dlq_topic(app)], "Describe", "its end offsets are in the commit records")
    if command in _CREATING:
        yield from _each([events_topic(app)], "Describe", "its topic id is in the description")
    yield from _each([commits_topic(app)], "Write", "commit records")
    for number in range(topics.instances):
        why = "the open transaction of the instance is ended" if number else "the command's transactions"
        yield Acl("transactional-id", transactional_id(app, number), "Write", why)


def _letters(topics: OperatorTopics, command: Command) -> Iterator[Acl]:
    app, used = topics.application_id, topics.used
    letters = [dlq_topic(app)]
    if command is Command.PURGE_LETTERS:
        yield from _each(letters, "Delete", "`dlq purge` deletes dead letters")
        return
    yield from _each(letters, "Read", "dead letters are read")
    if command is Command.LIST_LETTERS:
        return
    yield from _each([topology_topic(app)], "Read", "`dlq replay` looks up which topics are in use")
    yield from _each([commits_topic(app)], "Describe", "`dlq replay` checks that the description belongs to it")
    yield from _each(letters, "Write", "`dlq replay` marks the dead letters that it has sent")
    yield from _each(
        used.sources, "Read", "`dlq replay` reads the record of a dead letter that was shortened or refused"
    )
    to = [*used.sources, *used.sinks, *used.repartitions]
    yield from _each(to, "Write", "`dlq replay` sends records back")
    yield from _each([*to, *letters], "DescribeConfigs", "`dlq replay` leaves out what is larger than it accepts")
    yield Acl("transactional-id", replays_transactional_id(app), "Write", "the transactions of `dlq replay`")


def _created(created: TopicNames) -> Iterator[Acl]:
    topics = [*created.changelogs, *created.repartitions]
    yield from _each(topics, "Create", "the change creates it")
    yield from _each(topics, "DescribeConfigs", "its settings are verified when topics are created")
    yield from _each(created.changelogs, "Read", "the written state is compared")
    yield from _each(created.repartitions, "Read", "its offsets are committed")
    yield from _each(topics, "Write", "the state, or records that are not processed yet")
    yield from _each(topics, "Delete", "it is deleted again if the change fails")


def _own(app: str) -> list[str]:
    return [commits_topic(app), dlq_topic(app), events_topic(app), topology_topic(app)]


def _each(topics: Iterable[str], operation: str, why: str) -> Iterator[Acl]:
    return (Acl("topic", topic, operation, why) for topic in topics)

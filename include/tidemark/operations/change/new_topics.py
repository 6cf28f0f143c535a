"""The topics that a change creates. They are deleted if it fails before it can have been committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.errors import BatchAborted, OutcomeUnknown
from tidemark.kafka.acls import verify_granted
from tidemark.kafka.attempts import find_controller
from tidemark.kafka.operator_acls import OPERATOR_GRANT, TopicNames, created_acls
from tidemark.kafka.topics import TopicSpec, create_topics, ensure_internal_topics, partition_counts
from tidemark.settings import Settings
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import TopologyPlan


class NewTopics:
    """A context around a change. If it ends with any error, the topics that it has created are deleted.

    A killed process leaves them. Nothing refers to them, and the next run of the command creates others. `report` is called
    with what could not be deleted.
    """

    def __init__(self, admin: AdminClient, settings: Settings, report: Callable[[str], None]) -> None:
        self._admin = admin
        self._settings = settings
        self._say = report
        self._made: list[str] = []
        self._may_be_in_use = False

    def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create what does not exist. Blocks. Raises `PreflightFailed`, `OutcomeUnknown`."""
        create_topics(self._admin, specs, self._settings, self._made.append)

    def ensure(self, plan: TopologyPlan, committed: Collection[str], damaged: Collection[str] = ()) -> None:
        """Create the changelogs and repartition topics of a plan that do not exist, and verify its internal topics.

        `committed` are topics that hold state and existed when the change was planned: if one is missing, it was deleted since,
        and is not created again. `damaged` changelogs that the change does not write again stay as they are, or deleted.
        Other missing topics are created and stay, because every version has them. The user's rights to the created topics
        are checked now, because brokers answer only for topics that exist. Blocks. Raises `PreflightFailed`, `OutcomeUnknown`.
        """
        own = {changelog_of(plan.application_id, store) for store in plan.stores if store.has_changelog}
        own |= set(plan.repartition_topics)

        def created(name: str) -> None:
            if name in own:
                self._made.append(name)

        existing = partition_counts(self._admin, self._settings)
        ensure_internal_topics(plan, self._settings, self._admin, existing, committed, created, damaged)
        needed = created_acls(TopicNames.of(plan).only(self._made))
        verify_granted(needed, plan.application_id, self._settings, self._admin, OPERATOR_GRANT)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Surround the commit that brings the topics into use. After it, they are deleted only if it was certainly aborted."""
        self._may_be_in_use = True
        try:
            yield
        except BatchAborted:
            self._may_be_in_use = False
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._may_be_in_use and self._made:
            self._delete()

    def _delete(self) -> None:
        timeout_s = self._settings.broker_timeout_ms / 1000
        try:
            find_controller(self._admin, timeout_s)
            answers = self._admin.delete_topics(self._made, request_timeout=timeout_s)
            for answer in answers.values():
                answer.result()
        except (KafkaException, OutcomeUnknown) as error:
            self._say(
                f"failed to delete the topics that were created: {error}; nothing uses them, and they may be deleted: "
                f"{', '.join(self._made)}"
            )

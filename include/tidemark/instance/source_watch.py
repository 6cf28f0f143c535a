"""Looks whether the source topics of a running instance are still those with which it started."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait

from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

from tidemark.errors import OutcomeUnknown, StartRefused, TidemarkError
from tidemark.registry.topic_identities import lost_topics, topics_in_use
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_ANSWER_S = 1.0
"""The time that a commit waits for an answer. Without one it continues, because a controller that is away stops no stream."""

Answers = Mapping[str, Future[TopicDescription]]


class SourceWatch:
    """Compares ids and partition counts of all source topics with those of the start, about once a second.

    Offsets do not show that a topic was created again, and only lead topics are subscribed, so nothing else reports partitions
    that were added to the others. Used by the task loop alone.
    """

    def __init__(
        self,
        plan: TopologyPlan,
        known_ids: Mapping[str, str],
        partitions: Mapping[str, int],
        ask: Callable[[Sequence[str]], Answers],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what is known at the start. `ask` sends a request about topics and does not wait for the answers."""
        self._plan = plan
        self._known_ids = known_ids
        self._partitions = partitions
        self._ask = ask
        self._now_s = now_s
        self._topics = sorted({topic for s in plan.subtopologies for topic in s.source_topics})
        self._asked_s = -math.inf
        self._answers: Answers | None = None
        self._patience_s = 0.0

    def begin(self) -> None:
        """Ask again if the last time is more than a second ago. Called after a read; does not block.

        Raises what `require_unchanged` raises.
        """
        self._compare(0.0)
        if self._answers is None and self._now_s() - self._asked_s >= _LOOK_S:
            self._asked_s = self._now_s()
            self._answers, self._patience_s = self._ask(self._topics), _ANSWER_S

    def require_unchanged(self) -> None:
        """Compare the answers of the last `begin`. Called before a commit; blocks for at most a second for them.

        Raises `OutcomeUnknown` if a topic was created again, or a routed one has more partitions: the next start decides.
        Raises `StartRefused` if another one has more partitions.
        """
        if not self._compare(self._patience_s):
            log.warning("the brokers have not described the source topics within %.0f s", self._patience_s)
        self._patience_s = 0.0

    def _compare(self, timeout_s: float) -> bool:
        """Compare the answers, and return False if they have not come within `timeout_s`, and this waited for them."""
        if self._answers is None:
            return True
        if wait(self._answers.values(), timeout_s).not_done:
            return timeout_s == 0
        found, self._answers = _descriptions(self._answers), None
        uses = {topic: use for topic, use in topics_in_use(self._plan).items() if topic in found}
        for lost in lost_topics(uses, self._known_ids, {topic: str(each.topic_id) for topic, each in found.items()}):
            raise OutcomeUnknown(f"{lost.reason}; nothing more is committed")
        for topic, description in found.items():
            if len(description.partitions) > self._partitions[topic]:
                raise grown(self._plan, topic, self._partitions[topic])
        return True


def _descriptions(answers: Answers) -> dict[str, TopicDescription]:
    """Return what is known. A topic that is missing is left out: the broker may only not know it yet."""
    found = {}
    for topic, answer in answers.items():
        try:
            found[topic] = answer.result()
        except KafkaException as error:
            log.warning("the brokers have not described source topic %s: %s", topic, error)
    return found


def grown(plan: TopologyPlan, topic: str, partitions: int) -> TidemarkError:
    """Return the error to end with when a source has more partitions than the `partitions` with which the instance started."""
    if topic in plan.routed:
        return OutcomeUnknown(f"{topic} has more partitions now: the instance starts again with them")
    return StartRefused(
        f"{topic} now has more than its {partitions} partitions: records of one key are in two of them; stop the application "
        "and use `tidemark rescale run NAME --tasks N`"
    )

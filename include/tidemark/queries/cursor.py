"""The cursor of a page: the task and the stored key after which the next page begins, as opaque text.

It also names the contents that it belongs to, because a rescale, upgrade, reset or repair may move keys to other places.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from tidemark.names import TaskId
from tidemark.queries.errors import PositionGone, QueryInvalid
from tidemark.queries.store_reader import Place


@dataclass(frozen=True)
class Cursor:
    """Reading continues in `task`, after `after`; None: at its beginning.

    `tasks` is the number of tasks of the store, and `generation` that of its changelog.
    """

    task: TaskId
    after: Place | None
    tasks: int
    generation: int

    def require_contents(self, tasks: int, generation: int) -> None:
        """Raise `PositionGone` if the store has another number of tasks or another generation by now."""
        if (self.tasks, self.generation) != (tasks, generation):
            raise PositionGone(
                f"the cursor is of {self.tasks} tasks and generation {self.generation} of the changelog, the store now has "
                f"{tasks} tasks and generation {generation}: a rescale, upgrade, reset or repair has written it again",
                "begin without a cursor",
            )

    def encode(self) -> str:
        """Return the cursor as text that can be part of a URL."""
        at = None if self.after is None else [self.after.segment, self.after.key.hex()]
        return base64.urlsafe_b64encode(json.dumps([str(self.task), at, self.tasks, self.generation]).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read what `encode` wrote. Raises `QueryInvalid`."""
        try:
            task, at, tasks, generation = json.loads(base64.urlsafe_b64decode(text.encode()))
            after = None if at is None else Place(int(at[0]), bytes.fromhex(at[1]))
            return cls(TaskId.parse(task), after, int(tasks), int(generation))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise QueryInvalid(
                "the cursor is not one that an answer contained", "pass the cursor of the last page unchanged"
            ) from error

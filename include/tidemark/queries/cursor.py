"""The cursor of a page: the task and the stored key after which the next page begins, as opaque text."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from tidemark.names import TaskId
from tidemark.queries.errors import QueryInvalid
from tidemark.queries.store_reader import Place


@dataclass(frozen=True)
class Cursor:
    """Reading continues in `task`, after `after`; None: at its beginning."""

    task: TaskId
    after: Place | None

    def encode(self) -> str:
        """Return the cursor as text that can be part of a URL."""
        at = None if self.after is None else [self.after.segment, self.after.key.hex()]
        return base64.urlsafe_b64encode(json.dumps([str(self.task), at]).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read what `encode` wrote. Raises `QueryInvalid`."""
        try:
            task, at = json.loads(base64.urlsafe_b64decode(text.encode()))
            return cls(TaskId.parse(task), None if at is None else Place(int(at[0]), bytes.fromhex(at[1])))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise QueryInvalid(
                "the cursor is not one that an answer contained", "pass the cursor of the last page unchanged"
            ) from error

"""The progress of an audit, which its job reports to the process that started it, one line of JSON each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tidemark.clock import duration


@dataclass(frozen=True)
class AuditProgress:
    """`done` of `total` `unit` in one step of an audit; `total` is None if it is not known.

    `elapsed_s` counts from the start of the step.
    """

    step: str
    done: int
    total: int | None
    unit: str
    elapsed_s: float

    def line(self) -> str:
        """Return the progress as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> AuditProgress | None:
        """Parse the result of `line`; return None for anything else that a job prints."""
        try:
            return cls(**json.loads(line))
        except (TypeError, ValueError):
            return None

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.step}: {self.done:,} {self.unit} done in {duration(self.elapsed_s)}"
        said = f"{self.step}: {self.done:,} of {self.total:,} {self.unit}"
        if not self.done or not self.elapsed_s:
            return said
        left_s = self.elapsed_s * (self.total - self.done) / self.done
        return f"{said}, {self.done / self.elapsed_s:,.0f}/s, {duration(left_s)} left"


Tell = Callable[[AuditProgress], None]

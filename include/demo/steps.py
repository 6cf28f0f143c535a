"""Steps that run one after another in the background, while a screen shows what each waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from tidemark.errors import TidemarkError

log = logging.getLogger(__name__)

Report = Callable[[str], None]
"""Called with what a step waits for now."""


class StepState(StrEnum):
    """The state of a step."""

    NEXT = "next"
    NOW = "now"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Step:
    """One step. `work` blocks, reports what it waits for, and returns the outcome; it raises `TidemarkError` if it fails."""

    name: str
    work: Callable[[Report], str]


@dataclass(frozen=True)
class StepView:
    """A step at one time. `text` is what it waits for, or its outcome, or why it failed."""

    name: str
    state: StepState
    text: str = ""
    seconds: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the step is done or has failed."""
        return self.state in (StepState.DONE, StepState.FAILED)


class StepRunner(threading.Thread):
    """Runs steps in their order. The next one runs also if one fails. The process does not wait for this thread."""

    def __init__(self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="steps", daemon=True)
        self._steps = tuple(steps)
        self._clock = clock
        self._views = [StepView(step.name, StepState.NEXT) for step in steps]
        self._began_s = 0.0
        self._lock = threading.Lock()

    def views(self) -> tuple[StepView, ...]:
        """Return all steps as they are now."""
        with self._lock:
            return tuple(
                StepView(one.name, one.state, one.text, self._clock() - self._began_s)
                if one.state is StepState.NOW
                else one
                for one in self._views
            )

    def run(self) -> None:
        """Run the steps. Blocks."""
        for number, step in enumerate(self._steps):
            self._began_s = self._clock()
            self._set(number, StepState.NOW)
            try:
                outcome, state = step.work(partial(self._set, number, StepState.NOW)), StepState.DONE
            except TidemarkError as error:
                outcome, state = str(error), StepState.FAILED
            except Exception as error:
                log.exception("step %s failed", step.name)
                outcome, state = f"{type(error).__name__}: {error}", StepState.FAILED
            self._set(number, state, outcome, self._clock() - self._began_s)

    def _set(self, number: int, state: StepState, text: str = "", seconds: float | None = None) -> None:
        with self._lock:
            self._views[number] = StepView(self._steps[number].name, state, text, seconds)

"""The approval of a plan on the command line, for every noun with `plan` and `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import typer

from tidemark.cli.output import Output, Verbatim, View

Plan = TypeVar("Plan")


class Approval(Generic[Plan]):
    """Shows a plan and asks. `form` returns the plan for JSON, `views` for people; JSON is printed at the end."""

    def __init__(
        self,
        output: Output,
        question: str,
        form: Callable[[Plan], object],
        views: Callable[[Plan], Iterable[View]],
    ) -> None:
        self._output = output
        self._question = question
        self._form = form
        self._views = views
        self._plan: Plan | None = None

    def __call__(self, plan: Plan) -> bool:
        """Show the plan and return whether it is approved."""
        self._output.people(*self._views(plan))
        if not self._output.confirm(self._question):
            return False
        self._plan = plan
        return True

    def show_plan(self, plan: Plan, hint: str) -> None:
        """Show a plan that is not carried out; `hint` is what to do next, in one line."""
        self._output.show({"is_changed": False, "plan": self._form(plan)}, *self._views(plan), Verbatim(hint))

    def show_end(self, *, is_done: bool, message: str) -> None:
        """Show the end of the command. Ends the process with 1 if the plan was not approved.

        A command that had nothing to do is done without a plan.
        """
        if not is_done:
            self._output.people("nothing was changed")
            raise typer.Exit(1)
        plan = None if self._plan is None else self._form(self._plan)
        self._output.show({"is_changed": plan is not None, "plan": plan}, message)

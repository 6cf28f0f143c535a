"""A processor of a test's."""

from __future__ import annotations

from tidemark.processors import Context, Processor, Record


class KeyOf(Processor):
    """Forwards each record's key as a value."""

    def init(self, context: Context) -> None:
        self._context = context

    def process(self, record: Record) -> None:
        self._context.forward("all", {"was": record.key})

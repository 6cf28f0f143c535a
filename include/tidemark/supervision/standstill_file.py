"""`<var_dir>/instances/<app>-<instance>.standstill`: written by whoever watches an instance that makes no progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Standstill:
    """An instance without progress since `since_ms`. `is_told`: a person was alerted.

    `committed` is the sum of the committed offsets, which changes with every batch; None if it is not known.
    """

    since_ms: int
    why: str
    committed: int | None = None
    is_told: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for a file, which outlives the process that watches."""
        return asdict(self)

    @classmethod
    def of(cls, body: object) -> Standstill | None:
        """Build from the result of `to_dict`; returns None for anything else."""
        if not isinstance(body, Mapping):
            return None
        try:
            return cls(**body)
        except TypeError:
            return None

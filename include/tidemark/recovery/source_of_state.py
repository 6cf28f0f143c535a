"""The kinds of sources that a store's contents come from, apart from everything that reads them."""

from __future__ import annotations

from enum import Enum


class SourceOfState(Enum):
    """The kind of source that a store's contents come from. Of equally fast sources, the one that is listed first is preferred.

    SOURCE means that the source topics are processed again from their start. It is only taken when it is asked for.
    """

    LOCAL = "local"
    STANDBY = "standby"
    SAVEPOINT = "savepoint"
    CHANGELOG = "changelog"
    SOURCE = "source"

    @property
    def rank(self) -> int:
        """The order of preference; 0 is preferred most."""
        return list(SourceOfState).index(self)

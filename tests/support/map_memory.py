"""What the tests of `map_memory` share."""

from __future__ import annotations


def limit_of(made):
    return made._session.sql("select current_setting('memory_limit')").fetchall()[0][0]

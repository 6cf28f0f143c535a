"""The reasons why a query is not answered. Each has an HTTP status, says what is wrong, and says what to do."""

from __future__ import annotations


class QueryRefused(Exception):
    """Base of all refusals. `retry_after_s` is set if the same query may succeed later."""

    status = 500
    title = "the query failed"
    retry_after_s: int | None = None

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy

    def to_dict(self) -> dict[str, object]:
        """Return the body of the answer."""
        return {"status": self.status, "title": self.title, "detail": self.detail, "remedy": self.remedy}


class CallerUnknown(QueryRefused):
    """No token, or one that this application does not know."""

    status, title = 401, "the caller is not known"


class ScopeMissing(QueryRefused):
    """The token does not allow this."""

    status, title = 403, "the token does not allow this"


class StorePrivate(QueryRefused):
    """The topology does not let this store be read."""

    status, title = 403, "the store is private"


class StoreUnknown(QueryRefused):
    """There is no such store, or it cannot be queried at all."""

    status, title = 404, "there is no such store"


class NoEvents(QueryRefused):
    """This process has no events of an instance."""

    status, title = 404, "there are no events"


class QueryInvalid(QueryRefused):
    """The query does not fit the store, or a parameter has no meaning."""

    status, title = 422, "the query is not valid"


class TooManyRequests(QueryRefused):
    """The caller asks more often than `query_requests_per_second`."""

    status, title, retry_after_s = 429, "too many requests", 1


class StateUnavailable(QueryRefused):
    """No process that can be reached has the state with the freshness that the caller asks for. It may have it later."""

    status, title, retry_after_s = 503, "the state is not available", 1


class PositionGone(QueryRefused):
    """The position that the caller names is of contents that no longer exist."""

    status, title = 410, "the position is gone"


class QueryTimedOut(QueryRefused):
    """Reading took longer than `query_timeout_ms`."""

    status, title = 504, "the query took too long"


REFUSALS = (
    CallerUnknown, ScopeMissing, StorePrivate, StoreUnknown, NoEvents, QueryInvalid, TooManyRequests, StateUnavailable,
    PositionGone, QueryTimedOut,
)  # fmt: skip
"""All reasons."""

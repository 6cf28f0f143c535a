"""The instances and standbys that Prometheus can scrape, from what they report in their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidemark.supervision.local_instances import read_instances, read_standbys


@dataclass(frozen=True)
class ScrapeTarget:
    """A process whose metrics can be scraped at `url`."""

    application_id: str
    process: str
    url: str

    def to_dict(self) -> dict[str, object]:
        """Return it as Prometheus's HTTP service discovery reads it."""
        parts = urlsplit(self.url)
        labels = {
            "__scheme__": parts.scheme,
            "__meta_tidemark_application": self.application_id,
            "__meta_tidemark_instance": self.process,
        }
        return {"targets": [parts.netloc], "labels": labels}


def scrape_targets(var_dir: Path, application_id: str, now_s: float) -> list[ScrapeTarget]:
    """Return the processes that live and answer over HTTP. `now_s` is the time in epoch seconds. Reads small files."""
    processes = [*read_instances(var_dir, application_id), *read_standbys(var_dir, application_id, now_s)]
    return [
        ScrapeTarget(application_id, str(process.instance), process.query_url)
        for process in processes
        if process.is_alive and process.query_url is not None
    ]

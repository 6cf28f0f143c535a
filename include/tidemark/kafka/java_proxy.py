"""The proxies of the environment, which uv and pip use, as system properties of a JVM, which does not read them by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

# Java's own default, which another list replaces.
_LOOPBACK = ("localhost", "127.*", "[::1]")


@dataclass(frozen=True)
class JavaProxy:
    """The options for a JVM's command line, and a sentence for each part of the environment that is not among them.

    User and password of a proxy are never options, because other users can read command lines.
    """

    options: tuple[str, ...]
    left_out: tuple[str, ...]


def java_proxy(environment: Mapping[str, str]) -> JavaProxy:
    """Translate `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`; names in lower case win, as they do for uv and pip."""
    options: list[str] = []
    left_out: list[str] = []
    for scheme in ("https", "http"):
        name = f"{scheme.upper()}_PROXY"
        given = _value(environment, name)
        if not given:
            continue
        found = _host_and_port(given)
        if found is None:
            left_out.append(f"{name} is not used: it is not an address such as http://proxy.example:3128")
            continue
        options += [f"-D{scheme}.proxyHost={found[0]}", f"-D{scheme}.proxyPort={found[1]}"]
        if "@" in given:
            left_out.append(f"the user and the password in {name} are not used: Java would show them to other users")
    direct = [pattern for entry in _value(environment, "NO_PROXY").split(",") for pattern in _patterns(entry.strip())]
    if options and direct:
        options.append(f"-Dhttp.nonProxyHosts={'|'.join((*_LOOPBACK, *direct))}")
    return JavaProxy(tuple(options), tuple(left_out))


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.lower()) or environment.get(name) or ""


def _host_and_port(given: str) -> tuple[str, int] | None:
    try:
        address = urlsplit(given if "://" in given else f"http://{given}")
        host, port = address.hostname, address.port
    except ValueError:
        return None
    return (host, port or 80) if host and address.scheme == "http" else None


def _patterns(entry: str) -> list[str]:
    """Return Java's patterns for one entry: a domain includes its subdomains. Java cannot express a range of addresses."""
    if entry == "*":
        return ["*"]
    name = re.sub(r":\d+$", "", entry).removeprefix("*").removeprefix(".")
    if not name or "/" in name or "|" in name or ":" in name:
        return []
    return [name] if re.fullmatch(r"[\d.]+", name) else [name, f"*.{name}"]

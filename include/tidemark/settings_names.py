"""Checks of settings: refuse names that no setting has, secrets in `tidemark.toml`, and passwords in locations."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidemark.errors import InvalidSettings

PREFIX = "TIDEMARK_"

NOT_SETTINGS: Mapping[str, str] = {
    "TIDEMARK_HOME": "the project's folder, if it is not the one that holds `include/`",
    "TIDEMARK_CONFIG": "a settings file other than `tidemark.toml` in the project; it must exist",
    "TIDEMARK_TOPOLOGY_PATH": "more folders of topology modules, with `:` between them",
    "TIDEMARK_STACK_ID": "set by `tidemark up` in the processes that it starts, so that `tidemark down` finds them",
    "TIDEMARK_PROBE": "a function that tests call between the steps of a commit, as `package.module:function`",
}
"""Environment variables that are read before the settings, or that are not settings at all."""

SECRET_NAME = (
    r"(?i)password|passwd|passphrase|secret|token(?!\.endpoint)|jaas|key\.pem|keystore\.key"
    r"|(private|access|account|encryption)[._]?key(?!provider|size|gen|\.material)|credential|\.sas\."
)
"""A regular expression for Python and Java. It finds the names of options of Kafka's clients and Spark that hold a secret."""

_OF_SERVICES = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PORT|PROTO|ADDR))?$")


def is_secret_name(name: str) -> bool:
    """Return whether an option of a client or of Spark holds a secret, judged by its name."""
    return re.search(SECRET_NAME, name) is not None


def file_entries(file: Path, *, required: bool) -> dict[str, Any]:
    """Read `tidemark.toml`. Returns {} if the file does not exist and is not `required`. Raises `InvalidSettings`."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise InvalidSettings(
                f"TIDEMARK_CONFIG names {file}, which does not exist: create it, or unset TIDEMARK_CONFIG"
            ) from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"failed to read the settings in {file}: {error}; correct the file") from None


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def is_service_address(value: str) -> bool:
    """Return whether an environment variable has the address of a Service of Kubernetes, such as `tcp://10.0.0.1:9092`."""
    return value.startswith(("tcp://", "udp://", "sctp://"))


def refuse_unknown(known: Collection[str], environment: Mapping[str, str], entries: Iterable[str], file: Path) -> None:
    """Raise `InvalidSettings` for a name in the environment or the file that no setting has; suggest the nearest one.

    The variables that Kubernetes adds to pods for a Service with the name `tidemark` are none of ours.
    """
    variables = {variable_of(name) for name in known} | set(NOT_SETTINGS)
    for name in sorted(environment):
        if _OF_SERVICES.search(name) or (name.endswith("_PORT") and is_service_address(environment[name])):
            continue
        if name.upper().startswith(PREFIX) and name.upper() not in variables:
            _refuse(f"variable {name} of the environment", name.upper(), variables)
    for name in entries:
        if name not in known:
            _refuse(f"`{name}` in {file}", name, known)


def refuse_secrets(secret: Collection[str], entries: Mapping[str, Any], file: Path) -> None:
    """Raise `InvalidSettings` for a secret in the file, because the file is shared and copied. No value is shown.

    A `secret` setting may hold a URL without a password. An option in a table is a secret if its name looks like one.
    """
    for name, value in entries.items():
        if name in secret and not _is_url_without_password(value):
            _refuse_secret(name, f"`{name}`", file)
        for option in flat_options(value) if isinstance(value, Mapping) else ():
            if is_secret_name(option):
                _refuse_secret(name, f"`{option}` of `{name}`", file)


def refuse_password(name: str, locations: Iterable[str], remedy: str) -> None:
    """Raise `InvalidSettings` if one of the folders or URLs of a setting has a password. It is not shown.

    Locations are part of log lines, plans and reports. `remedy` says where the password is set instead.
    """
    urls = [location for location in locations if "://" in location]
    if any(_hides_password(url) or not _is_url_without_password(url) for url in urls):
        raise InvalidSettings(
            f"setting {name}: the URL has a password, which logs and plans would show: remove it there, and {remedy}"
        )


def flat_options(value: Any) -> Any:
    """Flatten a table of options to dotted names and texts: TOML reads `a.b = true` as a table within a table."""
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            found |= {f"{name}.{rest}": text for rest, text in flat_options(entry).items()}
        elif isinstance(entry, bool):
            found[name] = str(entry).lower()
        else:
            found[name] = str(entry) if isinstance(entry, int | float) else entry
    return found


def _is_url_without_password(value: Any) -> bool:
    try:
        parts = urlsplit(str(value))
        return bool(parts.scheme) and "://" in str(value) and not parts.password and not is_secret_name(parts.query)
    except ValueError:
        return False


def _hides_password(url: str) -> bool:
    """Return whether a URL looks as if a `/`, `?` or `#` of its password ended the part in which a password is expected."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        return "@" in url
    return False


def _refuse(what: str, name: str, known: Collection[str]) -> None:
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]
    raise InvalidSettings(f"{what} is not a setting; the nearest is {nearest} (docs/settings.md lists all settings)")


def _refuse_secret(name: str, what: str, file: Path) -> None:
    raise InvalidSettings(
        f"{what} in {file} is a secret, and others may read the file: remove it there, replace the secret, because it was "
        f"written down, and set {variable_of(name)} in the environment"
    )

"""Loading users' functions and classes, which a topology names by import path."""

from __future__ import annotations

import importlib
from typing import Any

from tidemark.atomic_file import as_full_disk
from tidemark.errors import InvalidTopology, TidemarkError, UserCodeFailed, describe_error


def code_failed(where: str, what: str, error: BaseException) -> TidemarkError:
    """Return the error to raise if user code raised and no record is to blame, so that a relaunch would end in the same way.

    `where` names node and function, `what` the call. The code may have read records, state or files that have them, which the
    text of its error may quote, so the message has only its class. A full disk is not the fault of the code: it gives
    `StoreFailed`.
    """
    full = as_full_disk(error) if isinstance(error, OSError) else None
    return full or UserCodeFailed(
        f"{where}: {what} raised {type(error).__name__}; no record is to blame, and it would raise again: correct it, and "
        "launch again",
        records=describe_error(error),
    )


def load_code(path: str, where: str) -> Any:
    """Import `package.module:name` and return it. `where` names the node in messages.

    Raises `InvalidTopology` if the path has another form, the module cannot be imported, or the name is not in it.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name.isidentifier()):
        raise InvalidTopology(f"{where}: '{path}' is not an import path; write 'package.module:name'")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InvalidTopology(
            f"{where}: {path}: module {module_name} cannot be imported: {describe_error(error)}; "
            f"correct it, or put it on the path of the instance's Python"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        what = "has no such name" if found is None else f"has it as {type(found).__name__}, which cannot be called"
        raise InvalidTopology(f"{where}: {path}: {module_name} {what}; define a function or class {name}")
    return found

"""Finding and loading topology modules: `include/topologies/<name>.py`, each with `def topology() -> Topology`."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import topologies
from tidemark.errors import ApplicationIdTaken, InvalidTopology, describe_error
from tidemark.topology.builder import OPTIMISED, Topology
from tidemark.topology.sql.expressions import nearest


def names() -> list[str]:
    """Return the names of the topology modules, sorted. Nothing is imported."""
    found = (module.name for module in pkgutil.iter_modules(topologies.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def load(name: str, *, optimised: bool | None = None) -> Topology:
    """Import a module and build its topology. It is planned once here, so a returned topology can be planned.

    `optimised`, unless None, overrides the module's own `Topology(optimised=...)`. Raises `InvalidTopology` naming the
    module, the line and the remedy, whatever the module does.
    """
    known = names()
    if name not in known:
        more = " or the folders of TIDEMARK_TOPOLOGY_PATH" if len(topologies.__path__) > 1 else ""
        raise InvalidTopology(f"no topology '{name}' in include/topologies{more}{nearest(name, known)}")
    before = OPTIMISED.set(OPTIMISED.get() if optimised is None else optimised)
    try:
        module = importlib.import_module(f"topologies.{name}")
        built = _function(module)()
    except InvalidTopology as error:
        raise InvalidTopology(f"topology {name}: {error}{_line_of(error, name)}") from error
    except (Exception, SystemExit) as error:
        raise InvalidTopology(
            f"topology {name} does not load: {describe_error(error)}{_line_of(error, name)}; correct the module"
        ) from error
    finally:
        OPTIMISED.reset(before)
    if not isinstance(built, Topology):
        raise InvalidTopology(f"topology {name}: topology() returned {type(built).__name__}; return the Topology")
    if optimised is not None and built.is_optimised is not optimised:
        raise InvalidTopology(
            f"topology {name}: its Topology was created while the module was imported, so optimised= cannot be "
            f"overridden; create it inside of topology()"
        )
    try:
        built.plan()
    except InvalidTopology as error:
        raise InvalidTopology(f"topology {name}: {error}") from error
    return built


def load_all() -> dict[str, Topology | Exception]:
    """Load every module. Returns by name the topology, or the error because of which the module cannot be a stream.

    An application id belongs to one module: the one that is named after it (`page-clicks`: `page_clicks`), else the one with
    the shortest name, else the first by name. The first keeps it also while it does not load, if its text has a function
    topology() and the id in quotes. Each other module with that id gets an `ApplicationIdTaken` that names the owner.
    """
    loaded: dict[str, Topology | Exception] = {}
    for name in names():
        try:
            loaded[name] = load(name)
        except Exception as error:  # noqa: BLE001 - a topology is user code, and the others must still be loaded
            loaded[name] = error
    owners: dict[str, str] = {}
    for name in sorted(loaded, key=lambda name: (len(name), name)):
        built = loaded[name]
        if isinstance(built, Topology):
            owners.setdefault(built.application_id, _named_after(built.application_id, loaded) or name)
    return {name: _refused_unless_owner(name, built, owners) for name, built in loaded.items()}


def module_versions() -> frozenset[tuple[str, int, int]]:
    """Return the path, modification time (ns) and size of every Python file in `include/topologies`, helpers included."""
    versions = set()
    for folder in topologies.__path__:
        for path in Path(folder).rglob("*.py"):
            # A file may be removed in this moment.
            with suppress(FileNotFoundError):
                seen = path.stat()
                versions.add((str(path), seen.st_mtime_ns, seen.st_size))
    return frozenset(versions)


def forget_modules() -> None:
    """Let the next load read every module in `include/topologies` again, also those that topologies import from there."""
    for name in [name for name in sys.modules if name.startswith(f"{topologies.__name__}.")]:
        sys.modules.pop(name, None)
        # `from topologies import helper` takes the attribute without looking for the module.
        vars(topologies).pop(name.split(".")[1], None)
    importlib.invalidate_caches()


def _named_after(application_id: str, loaded: Mapping[str, Topology | Exception]) -> str | None:
    """Return the module that is named after the application; None if there is none, or if it is not of that application."""
    name = re.sub(r"\W", "_", application_id)
    built = loaded.get(name)
    if isinstance(built, Topology):
        return name if built.application_id == application_id else None
    return name if built is not None and _declares(name, application_id) else None


def _declares(name: str, application_id: str) -> bool:
    """Return whether the text of a module that does not load declares a topology with the application id."""
    text = _text(name)
    quoted = (f'"{application_id}"', f"'{application_id}'")
    return "def topology(" in text and any(each in text for each in quoted)


def _text(name: str) -> str:
    """Return the text of a module, which need not be valid Python; an empty one if there is no file that can be read."""
    found = PathFinder.find_spec(f"{topologies.__name__}.{name}", topologies.__path__)
    if found is None or found.origin is None:
        return ""
    try:
        return Path(found.origin).read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _refused_unless_owner(name: str, built: Topology | Exception, owners: Mapping[str, str]) -> Topology | Exception:
    if isinstance(built, Exception) or owners[built.application_id] == name:
        return built
    return ApplicationIdTaken(
        f"topology {name}: the application id '{built.application_id}' belongs to the module "
        f"topologies/{owners[built.application_id]}.py; give this one another id, or keep it outside of "
        "include/topologies until it replaces that one"
    )


def _function(module: ModuleType) -> Callable[[], object]:
    function: Callable[[], object] | None = getattr(module, "topology", None)
    if function is None or not callable(function):
        raise InvalidTopology("the module has no function topology(); define `def topology() -> Topology`")
    return function


def _line_of(error: BaseException, name: str) -> str:
    """Format the last line of the module that the error passed through: ` (topologies/<name>.py, line n)`."""
    if isinstance(error, SyntaxError):
        return f" (topologies/{name}.py, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).stem == name]
    return f" (topologies/{name}.py, line {frames[-1].lineno})" if frames else ""

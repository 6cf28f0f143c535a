"""Makes HTML pages from the templates beside the code."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

_TEMPLATES = Environment(
    loader=PackageLoader("tidemark", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    # They change with the code only, and the page of streams renders fourteen every three seconds.
    auto_reload=False,
)


def render_page(template: str, **values: object) -> str:
    """Return the page of a template, which is named by its path in the package, such as `audit/page.html`.

    Escapes every value. Raises `jinja2.UndefinedError` if the template uses a name that has no value.
    """
    return _TEMPLATES.get_template(template).render(values)

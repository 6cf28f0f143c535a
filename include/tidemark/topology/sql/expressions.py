"""Checks of a topology's SQL expressions when they are written: syntax, columns, determinism, type.

The text is passed to Spark unchanged; sqlglot only parses it. Importing sqlglot takes a third of a second, so this module and
`schema` import it when it is first used.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Column
from tidemark.topology.sql.clock_texts import clock_text
from tidemark.topology.sql.functions import AGGREGATES, ANALYTIC, GENERATORS, NON_DETERMINISTIC, WINDOWS
from tidemark.topology.sql.types import function_name, spark_type

if TYPE_CHECKING:
    from sqlglot import exp

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def expression_type(text: str, columns: Sequence[Column], where: str, *, aggregate: bool = False) -> str:
    """Return the Spark type of an expression over `columns`, or `UNKNOWN` if it is not certain (see `sql.types`).

    `where` names node and argument for messages. `aggregate` allows aggregate functions. Raises `InvalidTopology` for
    anything that is not one deterministic expression per record over known columns.
    """
    tree = parse(text, where)
    _refuse_what_is_not_a_record_expression(tree, text, where, aggregate)
    tree = _annotated(_resolve(tree, columns, where), columns)
    _refuse_clock_texts(tree, text, where)
    return spark_type(tree)


def parse(text: str, where: str) -> exp.Expr:
    """Return the syntax tree of one expression. Raises `InvalidTopology` with line, column and the text found there."""
    import sqlglot
    from sqlglot.errors import ParseError, SqlglotError

    if not isinstance(text, str):
        raise InvalidTopology(f"{where}: {text!r} is not a string; write a Spark SQL expression")
    if not text.strip():
        raise InvalidTopology(f"{where}: the expression is empty; write a Spark SQL expression")
    try:
        trees = sqlglot.parse(text, dialect="spark")
    except ParseError as error:
        raise InvalidTopology(f"{where}: {quoted(text)} does not parse{syntax_error(error.errors)}") from None
    except SqlglotError as error:
        reason = _ANSI.sub("", str(error)).splitlines()[0]
        raise InvalidTopology(f"{where}: {quoted(text)} does not parse: {reason}; correct the SQL") from None
    if len(trees) != 1 or trees[0] is None:
        raise InvalidTopology(f"{where}: {quoted(text)} is not one expression; write one Spark SQL expression")
    # sqlglot takes a semicolon at the end for the end of a statement.
    if any(token.token_type is sqlglot.TokenType.SEMICOLON for token in sqlglot.tokenize(text, dialect="spark")):
        raise InvalidTopology(f"{where}: {quoted(text)} contains a semicolon; remove it")
    return trees[0]


def syntax_error(errors: list[dict[str, Any]], lines_before: int = 0) -> str:
    """Format the parser's errors as ` at line 1, column 8 (near '>'): reason; remedy`."""
    if not errors:
        return "; correct the SQL"
    first = errors[0]
    line, column, near = (first.get("line") or 1) - lines_before, first.get("col"), first.get("highlight") or ""
    reason = re.sub(r"<class '[\w.]+\.(\w+)'>", r"\1", first.get("description") or "invalid")
    return f" at line {line}, column {column} (near {near!r}): {reason.rstrip('.')}; correct the SQL"


def bare_column(text: str, columns: Sequence[Column]) -> Column | None:
    """Return the column if the whole expression is just its name, else None."""
    name = text.strip().strip("`").casefold()
    return next((column for column in columns if column.name.casefold() == name), None)


def columns_in(text: str) -> frozenset[str]:
    """Return the names, in lower case, of the columns that an expression uses. Raises `InvalidTopology` as `parse` does."""
    from sqlglot import exp

    return frozenset(node.parts[0].name.casefold() for node in parse(text, "expression").find_all(exp.Column))


def quoted(text: str) -> str:
    """Return the expression on one line, in quotes, cut to a readable length."""
    line = " ".join(text.split())
    return f'"{line if len(line) <= 120 else line[:117] + "..."}"'


def nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` or `; known are …` for a name that does not exist."""
    by_folded = {other.casefold(): other for other in known}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.5)
    return f"; did you mean '{by_folded[close[0]]}'?" if close else f"; known are {', '.join(known) or 'none'}"


def _refuse_what_is_not_a_record_expression(tree: exp.Expr, text: str, where: str, aggregate: bool) -> None:
    from sqlglot import exp

    found = f"{where}: {quoted(text)}"
    if isinstance(tree, exp.Alias):
        raise InvalidTopology(f"{found} has a name ({tree.alias}), but only an expression is allowed; remove AS")
    # sqlglot does not count the conversions of time zones, from_utc_timestamp() and to_utc_timestamp(), as conditions.
    if not isinstance(tree, exp.Condition | exp.AtTimeZone | exp.FromTimeZone):
        raise InvalidTopology(f"{found} is not an expression but {type(tree).__name__.upper()}; write one expression")
    for node in tree.walk():
        name = function_name(node)
        if node.comments:
            raise InvalidTopology(f"{found} contains a comment; remove it")
        if isinstance(node, exp.Query):
            raise InvalidTopology(f"{found} contains a subquery; an expression sees one record only, so join instead")
        if isinstance(node, exp.Window):
            raise InvalidTopology(f"{found} contains OVER (...); use windowed_by() and an aggregation")
        if name in ANALYTIC:
            raise InvalidTopology(
                f"{found} uses {name}(), which needs OVER (...); use windowed_by() and an aggregation"
            )
        if name in WINDOWS:
            raise InvalidTopology(
                f"{found} uses {name}(), for which Spark leaves out or repeats records; "
                f"use windowed_by() and an aggregation, or date_trunc() for a calendar unit"
            )
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            raise InvalidTopology(f"{found} contains *; name the columns")
        if isinstance(node, exp.Placeholder | exp.Parameter):
            raise InvalidTopology(f"{found} contains a placeholder; write the value itself")
        if isinstance(node, exp.AtTimeZone) and not isinstance(node.this, exp.Cast):
            raise InvalidTopology(f"{found} contains AT TIME ZONE, which Spark does not have; use from_utc_timestamp()")
        if name == "identifier":
            raise InvalidTopology(f"{found} computes a name with IDENTIFIER(); write the name itself")
        if isinstance(node, exp.UDTF) or name in GENERATORS:
            raise InvalidTopology(f"{found} makes several rows from one ({name}()); give one value per record")
        if name in NON_DETERMINISTIC or (name == "str_to_unix" and not node.this):
            raise InvalidTopology(
                f"{found} uses {name}(), which gives another result when a batch is computed again; "
                f"use columns of the record, e.g. _timestamp"
            )
        # sqlglot reads both the aggregate any(x) and a list of patterns, as in x LIKE ANY ('a%', 'b%'), as Any.
        if isinstance(node, exp.Any) and not isinstance(node.parent, exp.Like | exp.ILike):
            name = "any"
        if not aggregate and (isinstance(node, exp.AggFunc) or name in AGGREGATES):
            raise InvalidTopology(
                f"{found} uses the aggregate {name}(), but there is only one record; use group_by_key() and aggregate()"
            )


def _resolve(tree: exp.Expr, columns: Sequence[Column], where: str) -> exp.Expr:
    """Bind every column of the tree to the one table; fields of structs become dots."""
    from sqlglot import exp

    known = {column.name.casefold(): column.name for column in columns}
    for node in list(tree.find_all(exp.Column)):
        first, *rest = node.parts
        if first.name.casefold() not in known:
            raise InvalidTopology(f"{where}: unknown column '{first.name}'{nearest(first.name, list(known.values()))}")
        bound: exp.Expr = exp.column(known[first.name.casefold()], table="record", quoted=True)
        if rest:
            bound = exp.Dot.build([bound, *(part.copy() for part in rest)])
        if node is tree:
            return bound
        node.replace(bound)
    return tree


def _annotated(tree: exp.Expr, columns: Sequence[Column]) -> exp.Expr:
    """Return the tree with the type of each part, as far as it can be determined."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.schema import MappingSchema

    schema = MappingSchema(dialect="spark", normalize=False)
    # Parsing a type takes time, and the schema of sqlglot changes the fields of a type that is given as text to lower case.
    used = {node.name for node in tree.find_all(exp.Column)}
    types = {c.name: exp.DataType.build(c.type, dialect="spark") for c in columns if c.name in used}
    for dot in tree.find_all(exp.Dot):
        _spell_as_in_schema(dot, types)
    schema.add_table("record", types, normalize=False)
    select = sqlglot.select(exp.alias_(tree, "value")).from_("record")
    annotated: exp.Expr = annotate_types(select, schema=schema, dialect="spark").selects[0].this
    return annotated


def _spell_as_in_schema(place: exp.Expr, types: Mapping[str, exp.DataType]) -> exp.DataType | None:
    """Give the fields in a place, such as `a.b[0].c`, the case of the schema, as Spark finds them. Return the place's type.

    The type is None if the place is no part of a column, or if not exactly one field has the name.
    """
    from sqlglot import exp

    if isinstance(place, exp.Column):
        return types.get(place.name)
    if not isinstance(place, exp.Dot | exp.Bracket) or (outer := _spell_as_in_schema(place.this, types)) is None:
        return None
    if isinstance(place, exp.Bracket):
        parts = outer.expressions if outer.is_type(exp.DataType.Type.ARRAY, exp.DataType.Type.MAP) else [None]
        of_values: exp.DataType | None = parts[-1]
        return of_values
    is_struct = outer.is_type(exp.DataType.Type.STRUCT)
    name = place.expression.name.casefold()
    fields = [field for field in outer.expressions if field.name.casefold() == name] if is_struct else []
    if len(fields) != 1:
        return None
    place.set("expression", fields[0].this.copy())
    found: exp.DataType | None = fields[0].kind
    return found


def _refuse_clock_texts(tree: exp.Expr, text: str, where: str) -> None:
    if (found := clock_text(tree)) is not None:
        raise InvalidTopology(
            f"{where}: {quoted(text)} uses {found} where Spark could take it for a time by its clock, which is another one "
            f"when a batch is computed again; use columns of the record, e.g. _timestamp, or write the whole time, e.g. "
            f"TIMESTAMP'2024-01-15 12:30:00'; if it is a text, cast what it is compared with to STRING"
        )

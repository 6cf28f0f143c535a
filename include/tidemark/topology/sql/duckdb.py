"""Translation of Spark SQL to DuckDB, for expressions after a stateful node.

Only forms are accepted for which both engines can be made to agree. Each gives Spark's value (without ANSI mode) for every
input: integers wrap around, what cannot be computed is null, casts truncate and saturate as in Java.
`tests/integration/tasks/test_map.py` compares the results with Spark. Everything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemark.errors import InvalidTopology
from tidemark.topology.plan import Column
from tidemark.topology.sql.expressions import quoted

if TYPE_CHECKING:
    from sqlglot import exp

DUCK_TYPE = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "FLOAT": "REAL",
    "DOUBLE": "DOUBLE",
    "STRING": "VARCHAR",
}
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE")
_FRACTIONS = ("FLOAT", "DOUBLE")
_NULL, _DECIMAL = "NULL", "DECIMAL"
_MOST_DIGITS = 10
# A DECIMAL has 38 digits in both engines, of which Spark takes 20 for a BIGINT.
_MOST_DECIMALS = 18
# The arguments that the forms below handle; ignoring any other would change the meaning unnoticed.
_ARGUMENTS = {
    "this",
    "expression",
    "expressions",
    "low",
    "high",
    "ifs",
    "default",
    "true",
    "false",
    "to",
    "start",
    "length",
}
_ARGUMENTS |= {"position", "decimals", "negate", "is_string", "safe", "ignore_nulls", "quoted"}
_BLANKS, _JAVAS_BLANKS = "[\\x00-\\x20\\x7f]", "[\\x00-\\x20]"
"""The characters around a value that a cast from text ignores: Spark's for whole numbers and booleans, Java's for FLOAT and
DOUBLE.
"""


class _Unlike(Exception):
    """A part of an expression that DuckDB does not compute as Spark does, and what to write instead."""


@dataclass(frozen=True)
class Typed:
    """SQL of DuckDB, in brackets where needed, and the Spark type of its value."""

    sql: str
    type: str


def duck_sql(text: str, columns: Sequence[Column], where: str) -> str:
    """Translate a Spark SQL expression over `columns`, already checked by `expression_type`, for DuckDB.

    Raises `InvalidTopology` if the result might differ from Spark's.
    """
    import sqlglot

    tokens = [token.token_type.name for token in sqlglot.tokenize(text, read="spark")]
    try:
        if ("STRING", "STRING") in pairwise(tokens):
            raise _Unlike(r"write a quote in a text as \'")
        return _Translator(columns).of(sqlglot.parse_one(text, dialect="spark")).sql
    except _Unlike as reason:
        raise InvalidTopology(
            f"{where}: {quoted(text)} comes after a stateful node: {reason}; or compute it before that node, in Spark"
        ) from None


class _Translator:
    def __init__(self, columns: Sequence[Column]) -> None:
        from sqlglot import exp

        self._columns = {column.name.casefold(): column for column in columns}
        self._forms: dict[type[exp.Expr], Callable[..., Typed]] = {
            exp.Paren: lambda node: self.of(node.this),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: Typed("TRUE" if node.this else "FALSE", "BOOLEAN"),
            exp.Null: lambda node: Typed("NULL", _NULL),
            exp.Neg: self._negative,
            exp.Add: lambda node: self._arithmetic(node, "+"),
            exp.Sub: lambda node: self._arithmetic(node, "-"),
            exp.Mul: lambda node: self._arithmetic(node, "*"),
            exp.Div: self._division,
            exp.IntDiv: self._whole_division,
            exp.Mod: self._remainder,
            exp.And: lambda node: self._logic(node, "AND"),
            exp.Or: lambda node: self._logic(node, "OR"),
            exp.Not: self._not,
            exp.EQ: lambda node: self._compared(node, "="),
            exp.NEQ: lambda node: self._compared(node, "<>"),
            exp.LT: lambda node: self._compared(node, "<"),
            exp.LTE: lambda node: self._compared(node, "<="),
            exp.GT: lambda node: self._compared(node, ">"),
            exp.GTE: lambda node: self._compared(node, ">="),
            exp.NullSafeEQ: lambda node: self._compared(node, "IS NOT DISTINCT FROM"),
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: self._like,
            exp.Case: self._case,
            exp.If: self._if,
            exp.Coalesce: lambda node: self._together("COALESCE", [node.this, *node.expressions]),
            exp.Nullif: self._nullif,
            exp.Greatest: lambda node: self._together("GREATEST", [node.this, *node.expressions]),
            exp.Least: lambda node: self._together("LEAST", [node.this, *node.expressions]),
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.Concat: lambda node: self._concat(node.expressions),
            exp.DPipe: lambda node: self._concat([node.this, node.expression]),
            exp.Substring: self._substring,
            exp.Upper: lambda node: Typed(f"UPPER(REPLACE({self._text(node.this)}, 'ß', 'SS'))", "STRING"),
            exp.Lower: lambda node: Typed(f"LOWER({self._text(node.this)})", "STRING"),
            exp.Length: lambda node: Typed(f"CAST(LENGTH({self._text(node.this)}) AS INTEGER)", "INT"),
            exp.Trim: self._trim,
            exp.StartsWith: lambda node: self._found("STARTS_WITH", node),
            exp.EndsWith: lambda node: self._found("ENDS_WITH", node),
            exp.Contains: lambda node: self._found("CONTAINS", node),
            exp.Abs: self._absolute,
            exp.Floor: lambda node: self._whole("FLOOR", node),
            exp.Ceil: lambda node: self._whole("CEIL", node),
            exp.Round: self._round,
            exp.IsNan: self._is_nan,
        }

    def of(self, node: exp.Expr) -> Typed:
        form = self._forms.get(type(node))
        if form is None or any(given for name, given in node.args.items() if name not in _ARGUMENTS):
            name = node.sql("spark")
            raise _Unlike(
                f"{name if len(name) < 40 else type(node).__name__} is not known to give the same result as in Spark"
            )
        return form(node)

    def _column(self, node: exp.Column) -> Typed:
        column = self._columns[node.name.casefold()]
        return Typed(f'"{column.name}"', column.type)

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return Typed("'" + node.this.replace("'", "''") + "'", "STRING")
        if "e" in node.this.casefold():
            return Typed(f"CAST({node.this} AS DOUBLE)", "DOUBLE")
        whole, _, decimals = node.this.partition(".")
        # Spark decides a comparison of whole numbers with one beyond BIGINT in advance, also for null.
        if int(whole or 0) + bool(decimals) >= 1 << 63 or len(decimals) > _MOST_DECIMALS:
            raise _Unlike(f"{node.this} does not fit beside a BIGINT; write a DOUBLE, e.g. 1.5D")
        if re.fullmatch(r"[0-9]+", node.this):
            kind = next(kind for kind in ("INT", "BIGINT") if int(node.this) < 1 << (_BITS[kind] - 1))
            return Typed(_to(Typed(node.this, _NULL), kind), kind)
        return Typed(node.this, _DECIMAL)

    def _negative(self, node: exp.Neg) -> Typed:
        if node.this.is_number and node.this.name == str(1 << 63):
            # The smallest BIGINT: without its sign the number is beyond them.
            return Typed(f"CAST('-{1 << 63}' AS BIGINT)", "BIGINT")
        value = self._number(node.this)
        if value.type in _BITS:
            return Typed(_wrapped(f"-{_wide(value)}", value.type), value.type)
        return Typed(f"(-{value.sql})", value.type)

    def _arithmetic(self, node: exp.Binary, sign: str) -> Typed:
        left, right = self._number(node.left), self._number(node.right)
        kind = _common([left.type, right.type])
        if kind == _DECIMAL or (_DECIMAL in (left.type, right.type) and kind in _BITS):
            raise _Unlike(f"{node.sql('spark')} is computed in DECIMAL; write e.g. 1.5D, or CAST(... AS DOUBLE)")
        if kind in _BITS:
            return Typed(_wrapped(f"{_wide(left, kind)} {sign} {_wide(right, kind)}", kind), kind)
        return Typed(f"({_to(left, kind)} {sign} {_to(right, kind)})", kind)

    def _division(self, node: exp.Binary) -> Typed:
        left, right = self._number(node.left), self._number(node.right)
        if _DECIMAL in (left.type, right.type) and not {left.type, right.type} & set(_FRACTIONS):
            raise _Unlike(f"{node.sql('spark')} is computed in DECIMAL; write e.g. 1.5D, or CAST(... AS DOUBLE)")
        return Typed(f"({_to(left, 'DOUBLE')} / NULLIF({_to(right, 'DOUBLE')}, 0))", "DOUBLE")

    def _whole_division(self, node: exp.Binary) -> Typed:
        left, right = self._integer(node.left), self._integer(node.right)
        return Typed(_wrapped(f"{_wide(left, 'BIGINT')} // NULLIF({_wide(right, 'BIGINT')}, 0)", "BIGINT"), "BIGINT")

    def _remainder(self, node: exp.Binary) -> Typed:
        left, right = self._number(node.left), self._number(node.right)
        kind = _common([left.type, right.type])
        if kind == _DECIMAL or (_DECIMAL in (left.type, right.type) and kind in _BITS):
            raise _Unlike(f"{node.sql('spark')} is computed in DECIMAL; write e.g. 1.5D, or CAST(... AS DOUBLE)")
        if kind in _BITS:
            sql = f"{_wide(left, kind)} % NULLIF({_wide(right, kind)}, 0)"
            return Typed(f"CAST({sql} AS {DUCK_TYPE[kind]})", kind)
        return Typed(f"({_to(left, kind)} % NULLIF({_to(right, kind)}, 0))", kind)

    def _logic(self, node: exp.Binary, word: str) -> Typed:
        return Typed(f"({self._truth(node.left)} {word} {self._truth(node.right)})", "BOOLEAN")

    def _not(self, node: exp.Not) -> Typed:
        return Typed(f"(NOT {self._truth(node.this)})", "BOOLEAN")

    def _compared(self, node: exp.Binary, sign: str) -> Typed:
        return self._comparison(self.of(node.left), sign, self.of(node.right))

    def _comparison(self, left: Typed, sign: str, right: Typed) -> Typed:
        kind = _common([left.type, right.type])
        return Typed(f"({_to(left, kind)} {sign} {_to(right, kind)})", "BOOLEAN")

    def _is(self, node: exp.Is) -> Typed:
        from sqlglot import exp

        if not isinstance(node.expression, exp.Null):
            raise _Unlike(
                f"{node.sql('spark')} is not known to give the same result as in Spark; write IS NULL, = or <=>"
            )
        return Typed(f"({self.of(node.this).sql} IS NULL)", "BOOLEAN")

    def _in(self, node: exp.In) -> Typed:
        given = [self.of(each) for each in (node.this, *node.expressions)]
        kind = _common([each.type for each in given])
        value, *listed = [_to(each, kind) for each in given]
        return Typed(f"({value} IN ({', '.join(listed)}))", "BOOLEAN")

    def _between(self, node: exp.Between) -> Typed:
        value, low, high = (self.of(node.args[name]) for name in ("this", "low", "high"))
        above, below = self._comparison(value, ">=", low), self._comparison(value, "<=", high)
        return Typed(f"({above.sql} AND {below.sql})", "BOOLEAN")

    def _like(self, node: exp.Like) -> Typed:
        from sqlglot import exp

        pattern = node.expression
        if not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise _Unlike("the pattern of LIKE must be a text literal")
        if re.search(r"\\(?![%_\\])", re.sub(r"\\\\", "", pattern.this)):
            raise _Unlike(r"in a LIKE pattern, \ may only stand before %, _ and \ itself")
        word = "NOT LIKE" if node.args.get("negate") else "LIKE"
        return Typed(f"({self._text(node.this)} {word} {self.of(pattern).sql} ESCAPE '\\')", "BOOLEAN")

    def _case(self, node: exp.Case) -> Typed:
        pipelines = node.args["ifs"]
        if node.this is not None:
            value = self.of(node.this)
            conditions = [self._comparison(value, "=", self.of(pipeline.this)).sql for pipeline in pipelines]
        else:
            conditions = [self._truth(pipeline.this) for pipeline in pipelines]
        otherwise = node.args.get("default")
        results = [self.of(pipeline.args["true"]) for pipeline in pipelines]
        results.append(self.of(otherwise) if otherwise is not None else Typed("NULL", _NULL))
        return self._chosen(conditions, results)

    def _if(self, node: exp.If) -> Typed:
        otherwise = node.args.get("false")
        results = [self.of(node.args["true"]), self.of(otherwise) if otherwise is not None else Typed("NULL", _NULL)]
        return self._chosen([self._truth(node.this)], results)

    def _chosen(self, conditions: Sequence[str], results: Sequence[Typed]) -> Typed:
        kind = self._one_type(results)
        *values, otherwise = [_to(result, kind) for result in results]
        when = " ".join(f"WHEN {c} THEN {v}" for c, v in zip(conditions, values, strict=True))
        return Typed(f"(CASE {when} ELSE {otherwise} END)", kind)

    def _together(self, function: str, nodes: Sequence[exp.Expr]) -> Typed:
        values = [self.of(node) for node in nodes]
        kind = self._one_type(values)
        return Typed(f"{function}({', '.join(_to(value, kind) for value in values)})", kind)

    def _nullif(self, node: exp.Nullif) -> Typed:
        value = self.of(node.this)
        equal = self._comparison(value, "=", self.of(node.expression))
        return Typed(f"(CASE WHEN {equal.sql} THEN NULL ELSE {value.sql} END)", value.type)

    def _one_type(self, values: Sequence[Typed]) -> str:
        kind = _common([value.type for value in values])
        if kind == _DECIMAL or (kind in _BITS and any(value.type == _DECIMAL for value in values)):
            raise _Unlike("1.5 together with a whole number is computed in DECIMAL; write 1.5D")
        return kind

    def _cast(self, node: exp.Cast) -> Typed:
        from sqlglot import exp

        kind = node.to.sql("spark").upper()
        number = node.this
        is_number = isinstance(number, exp.Literal) and not number.is_string
        if is_number and kind == "DOUBLE" and "e" not in number.this.casefold():
            # A number may have more digits than any DECIMAL: its text has all of them.
            return Typed(f"CAST('{number.this}' AS DOUBLE)", kind)
        value = self.of(node.this)
        if kind not in DUCK_TYPE:
            raise _Unlike(f"type {kind} is not supported; cast to one of {', '.join(DUCK_TYPE)}")
        return Typed(_converted(value, kind), kind)

    def _concat(self, nodes: Sequence[exp.Expr]) -> Typed:
        return Typed("(" + " || ".join(_converted(self.of(node), "STRING") for node in nodes) + ")", "STRING")

    def _substring(self, node: exp.Substring) -> Typed:
        text = self._text(node.this)
        start, length = _whole_literal(node.args.get("start")), _whole_literal(node.args.get("length"))
        if start is None or (node.args.get("length") is not None and (length is None or length < 0)):
            raise _Unlike("start and length of substring() must be whole numbers")
        if start >= 0:
            rest = "" if length is None else f", {length}"
            return Typed(f"SUBSTRING({text}, {max(start, 1)}{rest})", "STRING")
        first = f"LENGTH({text}) - {-start}"
        begin = f"GREATEST({first}, 0)"
        rest = "" if length is None else f", GREATEST({first} + {length} - {begin}, 0)"
        return Typed(f"SUBSTRING({text}, {begin} + 1{rest})", "STRING")

    def _trim(self, node: exp.Trim) -> Typed:
        if node.expression is not None:
            raise _Unlike("trim() removes only blanks")
        side = {"LEADING": "LTRIM", "TRAILING": "RTRIM"}.get((node.args.get("position") or "").upper(), "TRIM")
        return Typed(f"{side}({self._text(node.this)}, ' ')", "STRING")

    def _found(self, function: str, node: exp.Func) -> Typed:
        return Typed(f"{function}({self._text(node.this)}, {self._text(node.expression)})", "BOOLEAN")

    def _absolute(self, node: exp.Abs) -> Typed:
        value = self._number(node.this)
        if value.type in _BITS:
            return Typed(_wrapped(f"ABS({_wide(value)})", value.type), value.type)
        return Typed(f"ABS({value.sql})", value.type)

    def _whole(self, function: str, node: exp.Func) -> Typed:
        value = self._number(node.this)
        if node.args.get("decimals") is not None or value.type == _DECIMAL:
            raise _Unlike(f"{node.sql('spark')} is computed in DECIMAL; give it one DOUBLE")
        if value.type in _BITS:
            return Typed(_to(value, "BIGINT"), "BIGINT")
        return Typed(_cut_off(f"{function}({_to(value, 'DOUBLE')})", "BIGINT"), "BIGINT")

    def _round(self, node: exp.Round) -> Typed:
        value = self._number(node.this)
        given = node.args.get("decimals")
        digits = 0 if given is None else _whole_literal(given)
        if value.type != "DOUBLE" or digits is None or not 0 <= digits <= _MOST_DIGITS:
            raise _Unlike(f"round() takes a DOUBLE, and 0 to {_MOST_DIGITS} digits; cast to DOUBLE")
        # Spark rounds the printed number, 2.675 to 2.68, not the binary one.
        printed = f"TRY_CAST(CAST({value.sql} AS VARCHAR) AS DECIMAL(38, {digits}))"
        exact = f"CAST(CAST({printed} AS VARCHAR) AS DOUBLE)"
        return Typed(f"(CASE WHEN ABS({value.sql}) < 1e15 THEN {exact} ELSE {value.sql} END)", "DOUBLE")

    def _is_nan(self, node: exp.IsNan) -> Typed:
        value = self._number(node.this)
        return Typed(f"COALESCE(ISNAN({_to(value, 'DOUBLE')}), FALSE)", "BOOLEAN")

    def _truth(self, node: exp.Expr) -> str:
        value = self.of(node)
        if value.type not in ("BOOLEAN", _NULL):
            raise _Unlike(f"{node.sql('spark')} is {value.type}, not BOOLEAN; compare it with something")
        return _to(value, "BOOLEAN")

    def _text(self, node: exp.Expr) -> str:
        value = self.of(node)
        if value.type not in ("STRING", _NULL):
            raise _Unlike(f"{node.sql('spark')} is {value.type}, not STRING; cast it")
        return _to(value, "STRING")

    def _number(self, node: exp.Expr) -> Typed:
        value = self.of(node)
        if value.type == _NULL:
            return Typed("CAST(NULL AS INTEGER)", "INT")
        if value.type not in (*_NUMBERS, _DECIMAL):
            raise _Unlike(f"{node.sql('spark')} is {value.type}, not a number; cast it, e.g. to DOUBLE")
        return value

    def _integer(self, node: exp.Expr) -> Typed:
        value = self._number(node)
        if value.type not in _BITS:
            raise _Unlike(f"div divides whole numbers, and {node.sql('spark')} is {value.type}; cast it to BIGINT")
        return value


def _common(kinds: Sequence[str]) -> str:
    """Return the type in which Spark compares or adds values of these types."""
    known = [kind for kind in kinds if kind != _NULL]
    if not known:
        return _NULL
    if all(kind == known[0] for kind in known):
        return known[0]
    if _DECIMAL in known and all(kind in (*_NUMBERS, _DECIMAL) for kind in known):
        return "DOUBLE" if set(known) & set(_FRACTIONS) else _DECIMAL
    if all(kind in _NUMBERS for kind in known):
        return max(known, key=_NUMBERS.index)
    raise _Unlike(f"{' and '.join(dict.fromkeys(known))} cannot be combined; cast one of them")


def _to(value: Typed, kind: str) -> str:
    """Convert to a type that can hold every value of the original type."""
    if value.type == kind or kind not in DUCK_TYPE:
        return value.sql
    return f"CAST({value.sql} AS {DUCK_TYPE[kind]})"


def _wide(value: Typed, kind: str = "") -> str:
    """Convert to a number type in which one operation cannot overflow."""
    return f"CAST({value.sql} AS {'HUGEINT' if 'BIGINT' in (kind, value.type) else 'BIGINT'})"


def _wrapped(sql: str, kind: str) -> str:
    """Reduce a wide number to its low bits, signed, as Java's integers wrap around."""
    half, wide = 1 << (_BITS[kind] - 1), "HUGEINT" if kind == "BIGINT" else "BIGINT"
    whole = f"CAST({2 * half} AS {wide})"
    return f"CAST((({sql} + {half}) % {whole} + {whole}) % {whole} - {half} AS {DUCK_TYPE[kind]})"


def _cut_off(sql: str, kind: str) -> str:
    """Convert a DOUBLE to an integer as Java casts: truncated, limited to the type's range, NaN to 0."""
    half = 1 << (_BITS[kind] - 1)
    return (
        f"(CASE WHEN ISNAN({sql}) THEN 0 WHEN {sql} >= {half}::DOUBLE THEN {half - 1} "
        f"WHEN {sql} < -{half}::DOUBLE THEN -{half} ELSE TRY_CAST(TRUNC({sql}) AS {DUCK_TYPE[kind]}) END)"
    )


def _converted(value: Typed, kind: str) -> str:
    """Convert as Spark's CAST does."""
    if value.type in (kind, _NULL) or (kind in _FRACTIONS and value.type == _DECIMAL):
        return f"CAST({value.sql} AS {DUCK_TYPE[kind]})"
    if value.type == "STRING":
        return _parsed(value.sql, kind)
    if value.type == _DECIMAL or (kind == "STRING" and value.type in _FRACTIONS):
        raise _Unlike(f"{value.type} is not converted to {kind} as in Spark; cast it to BIGINT first")
    if value.type in _FRACTIONS and kind in _BITS:
        if kind in ("TINYINT", "SMALLINT"):
            return _wrapped(f"CAST({_cut_off(_to(value, 'DOUBLE'), 'INT')} AS BIGINT)", kind)
        return _cut_off(_to(value, "DOUBLE"), kind)
    if value.type == "DOUBLE" and kind == "FLOAT":
        beyond = (
            f"CASE WHEN {value.sql} > 0 THEN CAST('inf' AS REAL) WHEN {value.sql} < 0 THEN CAST('-inf' AS REAL) END"
        )
        return f"COALESCE(TRY_CAST({value.sql} AS REAL), {beyond})"
    if value.type in _BITS and kind in _BITS and _BITS[kind] < _BITS[value.type]:
        return _wrapped(_wide(value), kind) if value.type != "BIGINT" else _wrapped_wide(value, kind)
    return f"CAST({value.sql} AS {DUCK_TYPE[kind]})"


def _wrapped_wide(value: Typed, kind: str) -> str:
    half = 1 << (_BITS[kind] - 1)
    wide = f"CAST({value.sql} AS HUGEINT)"
    return f"CAST((({wide} + {half}) % {2 * half} + {2 * half}) % {2 * half} - {half} AS {DUCK_TYPE[kind]})"


def _parsed(text: str, kind: str) -> str:
    """Parse text as a value; null if it is not one."""
    blanks = _JAVAS_BLANKS if kind in _FRACTIONS else _BLANKS
    bare = f"regexp_replace({text}, '^{blanks}+|{blanks}+$', '', 'g')"
    if kind == "BOOLEAN":
        small = f"LOWER({bare})"
        yes, no = "'t', 'true', 'y', 'yes', '1'", "'f', 'false', 'n', 'no', '0'"
        return f"(CASE WHEN {small} IN ({yes}) THEN TRUE WHEN {small} IN ({no}) THEN FALSE END)"
    if kind in _BITS:
        whole = f"regexp_replace({bare}, '[.].*$', '')"
        digits = f"(CASE WHEN {whole} IN ('', '+', '-') THEN '0' ELSE {whole} END)"
        return (
            f"(CASE WHEN regexp_full_match({bare}, '[+-]?([0-9]+([.][0-9]*)?|[.][0-9]*)') "
            f"THEN TRY_CAST({digits} AS {DUCK_TYPE[kind]}) END)"
        )
    small, duck = f"LOWER({bare})", DUCK_TYPE[kind]
    number = f"regexp_replace({small}, '[df]$', '')"
    beyond = f"CASE WHEN {small}[1] = '-' THEN CAST('-inf' AS {duck}) ELSE CAST('inf' AS {duck}) END"
    return (
        f"(CASE WHEN regexp_full_match({small}, '[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?[df]?') "
        f"THEN COALESCE(TRY_CAST({number} AS {duck}), {beyond}) "
        f"WHEN {small} IN ('inf', '+inf', 'infinity', '+infinity', '-inf', '-infinity') THEN {beyond} "
        # Java reads NaN with a sign, Spark reads it in any case of letters.
        f"WHEN {small} = 'nan' OR {bare} IN ('+NaN', '-NaN') THEN CAST('nan' AS {duck}) END)"
    )


def _whole_literal(node: exp.Expr | None) -> int | None:
    from sqlglot import exp

    sign = -1 if isinstance(node, exp.Neg) else 1
    bare = node.this if isinstance(node, exp.Neg) else node
    if isinstance(bare, exp.Literal) and not bare.is_string and re.fullmatch(r"[0-9]{1,9}", bare.this):
        return sign * int(bare.this)
    return None

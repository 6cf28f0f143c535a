"""Functions that tests name by import path."""

from __future__ import annotations

import sys


def keep_the_later(old, new):
    return new


def keep_larger(old, new):
    return new if new["x"] > old["x"] else old


def keep_larger_of_what_is_there(old, new):
    return old if new is None else keep_larger(old, new)


def add_x(old, new):
    return {**new, "x": old["x"] + new["x"]}


def add_only_x(old, new):
    return {"x": old["x"] + new["x"]}


def add_x_under_another_key(old, new):
    return {"id": old["id"] + new["id"], "x": old["x"] + new["x"]}


def zero():
    return {"x": 0}


def sum_x(key, row, aggregate):
    return {"x": aggregate["x"] + row["x"]}


def none_counted():
    return {"n": 0, "large": None}


def count_and_keep_large(key, row, aggregate):
    result = {"n": aggregate["n"] + 1}
    if row["x"] > 5:
        result["large"] = row["x"]
    elif aggregate["large"] is not None:
        result["large"] = aggregate["large"]
    return result


def append(key, row, aggregate):
    return {"seen": aggregate["seen"] + f"{key}{row['x']};"}


def nothing_seen():
    return {"seen": ""}


def last_two(key, row, aggregate):
    return {"f": row["x"] / 10, "before": aggregate["f"]}


def a_third():
    return {"f": 1 / 3}


def runs_out_of_memory(old, new):
    raise MemoryError


def no_quotients():
    return {"n": 0, "seen": ""}


def add_quotients(key, row, aggregate):
    return {"n": aggregate["n"] + row["x"] / 1, "seen": aggregate["seen"] + f"{aggregate['n']};"}


def none_halved():
    return {"n": 0}


def add_half(key, row, aggregate):
    return {"n": aggregate["n"] + row["x"] / 2}


def forget_at_nine(old, new):
    return None if new["x"] == 9 else new


def not_a_row(old, new):
    return 7


def unknown_column(old, new):
    return {"y": 1}


def text_of_nine(old, new):
    return {"x": "nine" if new["x"] == 9 else old["x"] + new["x"]}


def changes_and_raises_at_nine(old, new):
    old["x"] += new["x"]
    if new["x"] == 9:
        raise ValueError("nine")
    return old


def leaves_at_nine(old, new):
    if new["x"] == 9:
        sys.exit(3)
    return old


CONSTANT = 7

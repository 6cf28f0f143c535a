"""Partitioners: choose the partition of a record by its key as Java does, by `sticky`, or by a function of the user.

Sources, changelogs and keyed sinks of one application agree on the partition of a key only because all of them use Kafka's
murmur2 (see invariant: co-partitioning); `murmur2` is `org.apache.kafka.common.utils.Utils.murmur2` bit for bit.
"""

from __future__ import annotations

import importlib
import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from struct import iter_unpack
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemark.errors import InvalidTopology, describe_error

STICKY = "sticky"
"""Name of the partitioner that ignores keys."""

Hashes = npt.NDArray[np.int32]
Partitions = npt.NDArray[np.int32]

Partitioner = Callable[[bytes | None, bytes | None, int], int]
"""A user's function: takes key, value and number of partitions, and returns a partition from 0 to that number - 1."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF
_FEW_KEYS, _FEW_BYTES = 4, 128
_POSITIVE = np.int32(0x7FFFFFFF)
_Words = npt.NDArray[np.uint32]


class Placer(Protocol):
    """Chooses the partitions of one batch of records, none of which was sent before."""

    def __call__(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], partitions: int) -> Partitions:
        """Return a partition for each record, shape (records,). `keys` and `values` are of one length, `partitions` > 0."""


def murmur2(keys: Sequence[bytes]) -> Hashes:
    """Return Java's signed 32-bit hash of each key, shape (keys,).

    Keys of the same length are hashed together, so the time depends on the bytes and on the number of different lengths. A few
    short keys are hashed one after the other, which takes a quarter of the time of the smallest arrays.
    """
    if len(keys) <= _FEW_KEYS and sum(map(len, keys)) <= _FEW_BYTES:
        return np.array([_murmur2_of(key) for key in keys], dtype=np.uint32).view(np.int32)
    hashes = np.empty(len(keys), dtype=np.uint32)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[len(key)].append(place)
    for length, at in places.items():
        data = np.frombuffer(b"".join([keys[place] for place in at]), dtype=np.uint8)
        hashes[at] = _murmur2(data.reshape(len(at), length))
    return hashes.view(np.int32)


def partitions_of(keys: Sequence[bytes], n: int) -> Partitions:
    """Return the partition in which Java's default partitioner puts each key of a topic of `n` partitions, shape (keys,).

    Raises `ValueError` unless `n` is positive.
    """
    if n < 1:
        raise ValueError(f"{n} partitions: a topic has at least one")
    # Java clears the sign bit; the absolute value would move some keys.
    return (murmur2(keys) & _POSITIVE) % np.int32(n)


def partition_of(key: bytes, n: int) -> int:
    """Return the same for one key, without arrays, which take longer than a short key. Raises `ValueError`."""
    if n < 1:
        raise ValueError(f"{n} partitions: a topic has at least one")
    return (_murmur2_of(key) & 0x7FFFFFFF) % n


def _murmur2_of(key: bytes) -> int:
    """Return the unsigned hash of one key."""
    hashed = _SEED ^ len(key)
    whole = len(key) // 4 * 4
    for (word,) in iter_unpack("<I", key[:whole]):
        mixed = word * _M & _WORD
        hashed = hashed * _M & _WORD ^ (mixed ^ mixed >> 24) * _M & _WORD
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _WORD
    hashed = (hashed ^ hashed >> 13) * _M & _WORD
    return hashed ^ hashed >> 15


def _murmur2(data: npt.NDArray[np.uint8]) -> _Words:
    """Hash the rows of a matrix (keys, length)."""
    count, length = data.shape
    whole = length // 4 * 4
    words = np.ascontiguousarray(data[:, :whole]).view("<u4").astype(np.uint32, copy=False)
    multiplier = np.uint32(_M)
    hashes = np.full(count, _SEED ^ length, dtype=np.uint32)
    mixed = words * multiplier
    mixed ^= mixed >> 24
    mixed *= multiplier
    for word in mixed.T:
        hashes *= multiplier
        hashes ^= word
    if length > whole:
        for place in range(whole, length):
            hashes ^= data[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        hashes *= multiplier
    hashes ^= hashes >> 13
    hashes *= multiplier
    hashes ^= hashes >> 15
    return hashes


class Sticky:
    """Puts all records of a batch into one partition and the next batch into the next one: few, large requests (KIP-480).

    Give each task its own `start`, so that tasks do not all begin with the same partition.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def __call__(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], partitions: int) -> Partitions:
        """Place the records as described in `Placer`. An empty batch does not advance to the next partition."""
        placed = np.full(len(keys), self._next % partitions, dtype=np.int32)
        self._next += bool(len(keys))
        return placed


class ByKey:
    """Uses Java's default: murmur2 of the key. Records without a key are placed as by `Sticky`."""

    def __init__(self, start: int = 0) -> None:
        self._without_key = Sticky(start)

    def __call__(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], partitions: int) -> Partitions:
        """Place the records as described in `Placer`."""
        present = [key for key in keys if key is not None]
        hashed = partitions_of(present, partitions)
        if len(present) == len(keys):
            return hashed
        has_key = np.array([key is not None for key in keys], dtype=bool)
        placed = np.empty(len(keys), dtype=np.int32)
        placed[has_key] = hashed
        lacking = [None] * (len(keys) - len(present))
        placed[~has_key] = self._without_key(lacking, lacking, partitions)
        return placed


class ByFunction:
    """Calls a user's function for each record."""

    def __init__(self, path: str) -> None:
        """Load the function. Raises `InvalidTopology` as `load_partitioner` does."""
        self._path = path
        self._function = load_partitioner(path)

    def __call__(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], partitions: int) -> Partitions:
        """Place the records as described in `Placer`. Raises `InvalidTopology` for a failure or an invalid partition."""
        chosen = [self._ask(key, value, partitions) for key, value in zip(keys, values, strict=True)]
        return np.array(chosen, dtype=np.int32)

    def _ask(self, key: bytes | None, value: bytes | None, partitions: int) -> int:
        try:
            # Users compute with numpy too: accept whatever is an index, but no float.
            chosen = operator.index(self._function(key, value, partitions))
        except (Exception, SystemExit) as error:
            raise InvalidTopology(
                f"partitioner {self._path} failed for key {key!r}: {describe_error(error)}; correct it to return "
                f"an int for every record"
            ) from error
        if not 0 <= chosen < partitions:
            raise InvalidTopology(
                f"partitioner {self._path} returned {chosen} for key {key!r}; the topic has partitions 0 to {partitions - 1}"
            )
        return chosen


def placer(partitioner: str | None, start: int = 0) -> Placer:
    """Return the placer for `Sink.partitioner`, which is None (by key), `sticky`, or an import path.

    `start` is a number of the task's own. Raises `InvalidTopology` as `load_partitioner` does.
    """
    if partitioner is None:
        return ByKey(start)
    return Sticky(start) if partitioner == STICKY else ByFunction(partitioner)


def load_partitioner(path: str) -> Partitioner:
    """Import a function `(key, value, partitions) -> int` by its path `package.module:function`.

    Raises `InvalidTopology` naming the path, what is wrong with it, and the remedy.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module_name.split("."), *name.split(".")))):
        raise InvalidTopology(f"partitioner {path!r}: write '{STICKY}', or an import path 'package.module:function'")
    try:
        found: object = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InvalidTopology(
            f"partitioner {path}: module {module_name} does not load: {describe_error(error)}; correct it, "
            f"or put its folder on PYTHONPATH of every instance"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidTopology(f"partitioner {path}: there is no '{part}' in {module_name}; correct the path")
        found = getattr(found, part)
    if not callable(found) or not _takes_three(found):
        raise InvalidTopology(
            f"partitioner {path}: not a function of three arguments; define `def {name}(key: bytes | None, "
            f"value: bytes | None, partitions: int) -> int`"
        )
    function: Partitioner = found
    return function


def _takes_three(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(b"", b"", 1)
    except TypeError:
        return False
    except ValueError:
        # Some functions written in C have no signature; the first call shows whether it fits.
        return True
    return True

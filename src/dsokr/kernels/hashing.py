"""64-bit names of structures, which are hashes, and hash tables of names; for compiled code.

Equal structures have equal names, different ones almost surely different names: under uniform mixing, the probability
that any two of D structures share a name is below D² / 2⁶⁵, 3·10⁻⁶ for ten million of them.
"""

import numpy as np

from dsokr.compute import compiled, inlined

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@compiled
def mix(x):  # type: ignore[no-untyped-def]  # compiled for uint64
    """The splitmix64 finaliser, a bijection of 64-bit integers that looks random."""
    x = np.uint64(x) + _STEP
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


@compiled
def key(x):  # type: ignore[no-untyped-def]  # compiled for uint64
    """The part of pair(x, y) = mix(key(x) + y) that depends on x; not mix(x), or pair(x, mix(y)) would be symmetric."""
    return mix(x) * _FIRST


@compiled
def pair(x, y):  # type: ignore[no-untyped-def]  # compiled for uint64
    """The name of the ordered pair (x, y)."""
    return mix(key(x) + np.uint64(y))


@compiled
def pair_all(x: np.uint64, ys: np.ndarray) -> np.ndarray:
    """The names of the pairs (x, y)."""
    out = np.empty(len(ys), np.uint64)
    key_of_x = key(x)
    for i in range(len(ys)):
        out[i] = mix(key_of_x + np.uint64(ys[i]))
    return out


@inlined
def find(slots, ids, wanted):  # type: ignore[no-untyped-def]  # compiled for several types
    """Return the position of ``wanted`` in ``ids``, or −1; ``slots`` is their table. Call it from compiled loops."""
    return slots[_probe(slots, ids, wanted)]


@compiled
def number(names: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number names in order of appearance: the distinct names, their hash table, and the number of each given name."""
    size = 2
    while size < 2 * len(names):
        size *= 2
    slots = np.full(size, -1, np.int32)
    ids, numbers = np.empty(len(names), np.uint64), np.empty(len(names), np.int64)
    count = 0
    for k in range(len(names)):
        at = _probe(slots, ids, names[k])
        if slots[at] < 0:
            slots[at], ids[count] = count, names[k]
            count += 1
        numbers[k] = slots[at]
    return ids[:count].copy(), slots, numbers


@compiled
def build_table(ids: np.ndarray) -> np.ndarray:
    """Build the hash table of distinct ids: open addressing in a power of two of slots, at most half of them taken."""
    return number(ids)[1]


@inlined
def _probe(slots, ids, wanted):  # type: ignore[no-untyped-def]  # compiled for several types
    """Return the slot that holds the position of ``wanted``, or the free slot where it belongs."""
    last = np.uint64(len(slots) - 1)
    at = mix(wanted) & last
    while slots[at] >= 0 and np.uint64(ids[slots[at]]) != np.uint64(wanted):
        at = (at + np.uint64(1)) & last
    return at

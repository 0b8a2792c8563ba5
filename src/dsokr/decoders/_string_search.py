"""The search for strings with the n-grams that coordinates ask for: a beam, then letters changed one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsokr.compute import compiled
from dsokr.kernels.hashing import mix, pair

EQUAL = 1e-9  # up to which scores, which are made of counts, are equal


class Grams(NamedTuple):
    """The n-grams that anchors have, as numbers: offsets[k] plus the letters in base ``base``, for n = sizes[k]."""

    codes: np.ndarray  # (grams,)
    slots: np.ndarray  # a hash table of positions in codes
    sizes: np.ndarray  # ascending
    offsets: np.ndarray
    factors: np.ndarray  # the kernel's weights w_n
    base: int
    normalised: bool


class Pool(NamedTuple):
    """The best strings met so far, best first; of those with the same n-grams the first. Free places have size −1."""

    letters: np.ndarray  # (..., places, width)
    sizes: np.ndarray  # (..., places)
    scores: np.ndarray  # (..., places), with the prior
    names: np.ndarray  # (..., places) uint64, equal for strings with the same n-grams

    @staticmethod
    def empty(rows: int, places: int, width: int) -> Pool:
        shape = (rows, places)
        letters, names = np.zeros((*shape, width), np.int64), np.zeros(shape, np.uint64)
        return Pool(letters, np.full(shape, -1), np.full(shape, -np.inf), names)


@compiled
def search(
    start: int,
    stop: int,
    weights: np.ndarray,  # (n, grams)
    grams: Grams,
    seeds: np.ndarray,
    prior: np.ndarray,
    beam: int,
    known: np.ndarray,  # (n · starts, width)
    known_sizes: np.ndarray,  # (n · starts,)
    starts: int,
    found: Pool,  # (n, places)
) -> None:
    """Fill the pools of the rows from start to stop: known strings as they are, then all that climbs lead to."""
    for i in range(start, stop):
        pool = Pool(found.letters[i], found.sizes[i], found.scores[i], found.names[i])
        held = np.empty((len(grams.sizes), known.shape[1]), np.int64)
        for s in range(i * starts, (i + 1) * starts):
            linear, squared, name = _measured(known[s], known_sizes[s], weights[i], grams, held)
            _offer(pool, known[s], known_sizes[s], _score(linear, squared, grams) + prior[known_sizes[s]], name)
        for s in range(i * starts, (i + 1) * starts):
            _climb(known[s].copy(), known_sizes[s], weights[i], grams, prior, pool)
        ends = _grown(weights[i], grams, seeds, prior, beam, len(pool.sizes) // 2)
        for s in range(len(ends.sizes)):
            if ends.sizes[s] >= 0:
                _climb(ends.letters[s], ends.sizes[s], weights[i], grams, prior, pool)


@compiled
def _grown(weights: np.ndarray, grams: Grams, seeds: np.ndarray, prior: np.ndarray, beam: int, places: int) -> Pool:
    """Beam search over strings that grow from a seed to both sides: the best of all lengths allowed."""
    width, longest, size = len(prior) - 1, len(prior) - 1, seeds.shape[1]
    while prior[longest] == -np.inf:
        longest -= 1
    ends = Pool(
        np.zeros((places, width), np.int64), np.full(places, -1), np.full(places, -np.inf), np.zeros(places, np.uint64)
    )
    held = np.empty((len(grams.sizes), width), np.int64)
    linear, squared, names = np.empty(len(seeds)), np.empty(len(seeds)), np.empty(len(seeds), np.uint64)
    for s in range(len(seeds)):
        linear[s], squared[s], names[s] = _measured(seeds[s], size, weights, grams, held)
    chosen = _best_different(linear, squared, names, grams, beam)
    paths, before = np.zeros((beam, width), np.int64), np.zeros((beam, width), np.int64)
    for b in range(len(chosen)):
        _copy(seeds[chosen[b]], size, paths[b])
    while True:
        linear, squared, names = linear[chosen], squared[chosen], names[chosen]
        for b in range(len(chosen)):
            _offer(ends, paths[b], size, _score(linear[b], squared[b], grams) + float(prior[size]), names[b])
        if size == longest:
            return ends
        linear, squared, names, states = _extended(paths, size, linear, squared, names, weights, grams)
        chosen = _best_different(linear, squared, states, grams, beam)
        paths, before = before, paths
        for b in range(len(chosen)):
            path, side, letter = chosen[b] // (2 * grams.base), chosen[b] // grams.base % 2, chosen[b] % grams.base
            _edit(before[path], size, 0 if side else size, 0, letter, paths[b])
        size += 1


@compiled
def _extended(
    paths: np.ndarray,
    size: int,
    linear: np.ndarray,
    squared: np.ndarray,
    names: np.ndarray,
    weights: np.ndarray,
    grams: Grams,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """⟨w, φ⟩, ‖φ‖², name and state of every path with every letter at its end, then with every letter before it.

    What equal states may become is equal too: they have the same n-grams and the same letters at both ends.
    """
    base = grams.base
    shape = (len(names), 2, base)
    to_linear, to_squared, to_names = np.empty(shape), np.empty(shape), np.empty(shape, np.uint64)
    states, codes, times = np.empty(shape, np.uint64), np.empty((2, base), np.int64), np.empty((2, base), np.int64)
    for b in range(len(names)):
        to_linear[b], to_squared[b], to_names[b] = linear[b], squared[b], names[b]
        for k in range(len(grams.sizes)):
            if grams.sizes[k] > size + 1:
                continue
            _next_grams(paths[b], size, k, grams, codes, times)
            for side in range(2):
                for x in range(base):
                    to_linear[b, side, x] += _weight(weights, grams, codes[side, x])
                    to_squared[b, side, x] += grams.factors[k] * (2 * times[side, x] + 1)
                    to_names[b, side, x] += mix(codes[side, x])
        for side in range(2):
            for x in range(base):
                states[b, side, x] = pair(to_names[b, side, x], _ends(paths[b], size, side, x, grams))
    return to_linear.ravel(), to_squared.ravel(), to_names.ravel(), states.ravel()


@compiled
def _next_grams(y: np.ndarray, size: int, k: int, grams: Grams, codes: np.ndarray, times: np.ndarray) -> None:
    """The n-grams that y[:size] gets by a letter at its end and before it, and how often it has them already."""
    n, base, offset = grams.sizes[k], grams.base, grams.offsets[k]
    power = base ** (n - 1)
    tail, head = _code(y, size - n + 1, size, base), _code(y, 0, n - 1, base)
    for x in range(base):
        codes[0, x], codes[1, x] = offset + tail * base + x, offset + x * power + head
        times[0, x] = times[1, x] = 0
    for i in range(size - n + 1):
        code = _code(y, i, i + n, base)
        if code // base == tail:
            times[0, code % base] += 1
        if code % power == head:
            times[1, code // power] += 1


@compiled
def _ends(y: np.ndarray, size: int, side: int, letter: int, grams: Grams) -> np.uint64:
    """A name for the n − 1 letters at both ends of y[:size] with one letter more, which n-grams to come will share."""
    n, base = min(grams.sizes[-1], size + 1), grams.base
    head, tail = _code(y, 0, n - 1, base), _code(y, size - n + 1, size, base)
    if side == 0:
        tail = (tail * base + letter) % base ** (n - 1)
    else:
        head = (letter * base ** (n - 1) + head) // base
    return pair(head, tail)


@compiled
def _best_different(linear: np.ndarray, squared: np.ndarray, keys: np.ndarray, grams: Grams, most: int) -> np.ndarray:
    """Positions of the ``most`` best scores with different keys, best first. Equal in single precision is equal."""
    chosen, scores, count = np.empty(most, np.int64), np.empty(most, np.float32), 0
    for c in range(len(keys)):
        score = np.float32(_score(linear[c], squared[c], grams))
        fresh = count < most or score > scores[most - 1]
        for j in range(count if fresh else 0):
            fresh &= keys[chosen[j]] != keys[c]
        if not fresh:
            continue
        count = min(count + 1, most)
        at = count - 1
        while at > 0 and score > scores[at - 1]:
            chosen[at], scores[at] = chosen[at - 1], scores[at - 1]
            at -= 1
        chosen[at], scores[at] = c, score
    return chosen[:count]


@compiled
def _climb(y: np.ndarray, size: int, weights: np.ndarray, grams: Grams, prior: np.ndarray, pool: Pool) -> None:
    """Make the best edit of one letter again and again, as long as the score grows; offer what that leads to."""
    held = np.empty((len(grams.sizes), len(y)), np.int64)
    edited = np.empty_like(y)
    while True:
        linear, squared, name = _measured(y, size, weights, grams, held)
        score = _score(linear, squared, grams) + prior[size]
        best, at, cut, letter = _best_edit(y, size, linear, squared, score, weights, grams, prior, held)
        if not _beats(best, score):
            _offer(pool, y, size, score, name)
            return
        size = _edit(y, size, at, cut, letter, edited)
        _copy(edited, size, y)


@compiled
def _best_edit(
    y: np.ndarray,
    size: int,
    linear: float,
    squared: float,
    best: float,
    weights: np.ndarray,
    grams: Grams,
    prior: np.ndarray,
    held: np.ndarray,
) -> tuple[float, int, int, int]:
    """The best string that is y with one letter inserted (cut = 0), substituted or deleted (cut = 1), if it is better.

    Only the n-grams that touch the place change. Each new one costs its factor at least, more if y has it elsewhere:
    most edits are ruled out by the first, without looking for the n-gram in y.
    """
    edited, kept, fresh = np.empty_like(y), held.copy(), np.empty((len(held), grams.sizes[-1]), np.int64)
    where = (0, 0, -1)
    for at in range(size + 1):
        for cut in range(min(2, size + 1 - at)):
            lost, lost_squared = _cut(held, size, at, cut, weights, grams, kept)
            for letter in range(-cut, grams.base):
                new = size - cut + (letter >= 0)
                if new >= len(prior) or prior[new] == -np.inf:
                    continue
                _edit(y, size, at, cut, letter, edited)
                gained, least = _added(edited, new, at, letter >= 0, weights, grams, fresh)
                total, rest = linear - lost + gained, squared - lost_squared
                if total >= 0 and _score(total, rest + least, grams) + prior[new] <= best:
                    continue
                score = _score(total, rest + _cost(fresh, kept, grams), grams) + prior[new]
                if score > best:
                    best, where = score, (at, cut, letter)
    return best, where[0], where[1], where[2]


@compiled
def _edit(y: np.ndarray, size: int, at: int, cut: int, letter: int, out: np.ndarray) -> int:
    """y[:at] + letter + y[at + cut:], without a letter if it is −1; returns how long that is."""
    put = 1 if letter >= 0 else 0
    _copy(y, at, out)
    if put:
        out[at] = letter
    _copy(y[at + cut :], size - at - cut, out[at + put :])
    return size - cut + put


@compiled
def _cut(
    held: np.ndarray, size: int, at: int, cut: int, weights: np.ndarray, grams: Grams, kept: np.ndarray
) -> tuple[float, float]:
    """What the n-grams that touch the letters from at to at + cut add to ⟨w, φ⟩ and ‖φ‖²; kept are the others."""
    linear = squared = 0.0
    for k in range(len(grams.sizes)):
        n = grams.sizes[k]
        _copy(held[k], size, kept[k])
        for first in range(max(0, at - n + 1), min(at + cut - 1, size - n) + 1):
            squared += grams.factors[k] * (2 * _count(kept[k, :size], held[k, first]) - 1)
            linear += _weight(weights, grams, held[k, first])
            kept[k, first] = -1
    return linear, squared


@compiled
def _added(
    y: np.ndarray, size: int, at: int, put: int, weights: np.ndarray, grams: Grams, fresh: np.ndarray
) -> tuple[float, float]:
    """What the n-grams that touch the letters from at to at + put add to ⟨w, φ⟩, and to ‖φ‖² if each is new."""
    linear = least = 0.0
    fresh[:] = -1
    for k in range(len(grams.sizes)):
        n = grams.sizes[k]
        first = max(0, at - n + 1)
        for i in range(first, min(at + put - 1, size - n) + 1):
            fresh[k, i - first] = grams.offsets[k] + _code(y, i, i + n, grams.base)
            linear += _weight(weights, grams, fresh[k, i - first])
            least += grams.factors[k]
    return linear, least


@compiled
def _cost(fresh: np.ndarray, kept: np.ndarray, grams: Grams) -> float:
    """What the fresh n-grams add to ‖φ‖² beside those kept."""
    cost = 0.0
    for k in range(len(fresh)):
        for j in range(fresh.shape[1]):
            if fresh[k, j] >= 0:
                times = _count(kept[k], fresh[k, j]) + _count(fresh[k, :j], fresh[k, j])
                cost += grams.factors[k] * (2 * times + 1)
    return cost


@compiled
def _measured(
    y: np.ndarray, size: int, weights: np.ndarray, grams: Grams, held: np.ndarray
) -> tuple[float, float, np.uint64]:
    """⟨w, φ(y)⟩, ‖φ(y)‖² and a name for the n-grams of y[:size], which are put into held, by n and by place."""
    linear, squared, name = 0.0, 0.0, np.uint64(0)
    held[:] = -1
    for k in range(len(grams.sizes)):
        for first in range(size - grams.sizes[k] + 1):
            code = grams.offsets[k] + _code(y, first, first + grams.sizes[k], grams.base)
            linear += _weight(weights, grams, code)
            squared += grams.factors[k] * (2 * _count(held[k, :first], code) + 1)
            name += mix(code)
            held[k, first] = code
    return linear, squared, name


@compiled
def _score(linear: float, squared: float, grams: Grams) -> float:
    """The paper's rule, 2⟨w, φ⟩ − ‖φ‖², with φ / ‖φ‖ in place of φ if the kernel is normalised."""
    if not grams.normalised:
        return 2 * linear - squared
    return 2 * linear / np.sqrt(squared) - 1 if squared > 0 else -np.inf


@compiled
def _beats(score: float, other: float) -> bool:
    """Whether a score is above another by more than rounding: else climbs may never end, and ties have no order."""
    return score - other > EQUAL * (1 + abs(score))


@compiled
def _offer(pool: Pool, y: np.ndarray, size: int, score: float, name: np.uint64) -> None:
    """Put y[:size] in its place, behind those that score the same, unless its n-grams are there already."""
    if score == -np.inf:
        return
    for j in range(len(pool.sizes)):
        if pool.sizes[j] == size and pool.names[j] == name:
            return
    at = len(pool.sizes)
    while at > 0 and _beats(score, pool.scores[at - 1]):
        at -= 1
    for j in range(len(pool.sizes) - 1, at, -1):
        _copy(pool.letters[j - 1], pool.sizes[j - 1], pool.letters[j])
        pool.sizes[j], pool.scores[j], pool.names[j] = pool.sizes[j - 1], pool.scores[j - 1], pool.names[j - 1]
    if at < len(pool.sizes):
        _copy(y, size, pool.letters[at])
        pool.sizes[at], pool.scores[at], pool.names[at] = size, score, name


@compiled
def _copy(source: np.ndarray, size: int, to: np.ndarray) -> None:
    for i in range(size):  # assigning slices compiles for seconds
        to[i] = source[i]


@compiled
def _code(y: np.ndarray, start: int, stop: int, base: int) -> int:
    code = 0
    for i in range(start, stop):
        code = code * base + y[i]
    return code


@compiled
def _count(codes: np.ndarray, code: int) -> int:
    times = 0
    for other in codes:
        times += other == code
    return times


@compiled
def _weight(weights: np.ndarray, grams: Grams, code: int) -> float:
    """The weight of an n-gram, zero if no anchor has it."""
    last = np.uint64(len(grams.slots) - 1)
    at = mix(code) & last
    while grams.slots[at] >= 0:
        if grams.codes[grams.slots[at]] == code:
            return weights[grams.slots[at]]
        at = (at + np.uint64(1)) & last
    return 0.0


@compiled
def slots_of(codes: np.ndarray) -> np.ndarray:
    """A hash table of the positions of different codes, half full at most."""
    size = 2
    while size < 2 * len(codes):
        size *= 2
    slots, last = np.full(size, -1), np.uint64(size - 1)
    for k in range(len(codes)):
        at = mix(codes[k]) & last
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & last
        slots[at] = k
    return slots

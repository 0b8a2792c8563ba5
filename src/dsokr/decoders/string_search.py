"""The compiled search for strings with the n-grams that coordinates ask for: a beam, then edits of single letters.

A string is a row of numbers, its letters' places in the alphabet, of which the first ``size`` count.
"""

from typing import NamedTuple

import numpy as np

from dsokr.compute import compiled, inlined
from dsokr.kernels.hashing import find, mix, pair

EQUAL = 1e-9  # scores that differ by less are tied: they are sums of counts


class NGramObjective(NamedTuple):
    """2⟨w, φ(y)⟩ − ‖φ(y)‖² + prior(size), where φ counts n-grams; normalised, 2⟨w, φ(y)⟩ / ‖φ(y)‖ − 1 + prior(size).

    An n-gram is a number: ``offsets[k]`` plus its letters in base ``base``, for n = ``sizes[k]``.
    """

    weights: np.ndarray  # (grams,): w
    codes: np.ndarray  # (grams,): the n-grams that anchors have
    slots: np.ndarray  # their hash table
    sizes: np.ndarray  # ascending
    offsets: np.ndarray
    factors: np.ndarray  # the kernel's weight for every n
    base: int
    normalised: bool
    prior: np.ndarray  # (width + 1,): by size, −∞ for sizes that are not allowed


class Pool(NamedTuple):
    """The best strings so far, best first; of those with the same n-grams only the first. Free places have size −1."""

    letters: np.ndarray  # (places, width)
    sizes: np.ndarray  # (places,)
    scores: np.ndarray  # (places,)
    names: np.ndarray  # (places,) uint64, equal for strings with the same n-grams


@compiled
def search(
    goal: NGramObjective, seeds: np.ndarray, beam: int, starts: int, known: np.ndarray, sizes: np.ndarray, k: int
) -> Pool:
    """Return the best strings of: the known ones, and what climbs from these and from the beam's best lead to.

    If k strings are more than that, the beam's best are among them.
    """
    width, more = known.shape[1], max(0, k - 2 * starts)
    pool, ends = _new_pool(2 * starts + more, width), _new_pool(starts + more, width)
    held = np.empty((len(goal.sizes), width), np.int64)
    for s in range(len(known)):
        linear, squared, name = _measure(goal, known[s], sizes[s], held)
        _offer(pool, known[s], sizes[s], _score(goal, linear, squared, sizes[s]), name)
    for s in range(len(known)):
        _climb(goal, known[s], sizes[s], pool)
    _grow(goal, seeds, np.zeros((2, beam, width), np.int64), ends, held)
    for s in range(len(ends.sizes) if more else 0):
        if ends.sizes[s] >= 0:
            _offer(pool, ends.letters[s], ends.sizes[s], ends.scores[s], ends.names[s])
    for s in range(starts):
        if ends.sizes[s] >= 0:
            _climb(goal, ends.letters[s], ends.sizes[s], pool)
    return pool


@compiled
def _new_pool(places: int, width: int) -> Pool:
    letters, names = np.zeros((places, width), np.int64), np.zeros(places, np.uint64)
    return Pool(letters, np.full(places, -1), np.full(places, -np.inf), names)


@compiled
def _grow(goal: NGramObjective, seeds: np.ndarray, paths: np.ndarray, ends: Pool, held: np.ndarray) -> None:
    """Beam search over strings that grow from a seed at both ends: the best of all sizes allowed.

    ``paths`` holds the strings of this size and of the next one, by turns.
    """
    size, longest, beam = seeds.shape[1], np.flatnonzero(goal.prior > -np.inf)[-1], paths.shape[1]
    linear, squared, names = np.empty(len(seeds)), np.empty(len(seeds)), np.empty(len(seeds), np.uint64)
    for s in range(len(seeds)):
        linear[s], squared[s], names[s] = _measure(goal, seeds[s], size, held)
    chosen = _choose_distinct(goal, linear, squared, names, beam)
    for b in range(len(chosen)):
        _copy(seeds[chosen[b]], size, paths[size % 2, b])
    while True:
        linear, squared, names = linear[chosen], squared[chosen], names[chosen]
        now, longer = paths[size % 2], paths[(size + 1) % 2]
        for b in range(len(chosen)):
            _offer(ends, now[b], size, _score(goal, linear[b], squared[b], size), names[b])
        if size == longest:
            return
        linear, squared, names, states = _extend(goal, now, size, linear, squared, names)
        chosen = _choose_distinct(goal, linear, squared, states, beam)
        for b in range(len(chosen)):
            path, side, letter = chosen[b] // (2 * goal.base), chosen[b] // goal.base % 2, chosen[b] % goal.base
            _edit(now[path], size, 0 if side else size, 0, letter, longer[b])
        size += 1


@compiled
def _extend(  # type: ignore[no-untyped-def] # returns four arrays
    goal: NGramObjective, paths: np.ndarray, size: int, linear: np.ndarray, squared: np.ndarray, names: np.ndarray
):
    """⟨w, φ⟩, ‖φ‖², name and state of every path with every letter at its end, then with every letter before it.

    Paths of equal states have equal futures: they have the same n-grams and the same letters at both ends.
    """
    base, n = goal.base, min(goal.sizes[-1], size + 1)  # later n-grams contain n − 1 letters at an end
    power, count = base ** (n - 1), 2 * base * len(names)
    to_linear, to_squared = np.repeat(linear, 2 * base), np.repeat(squared, 2 * base)
    to_names, states = np.repeat(names, 2 * base), np.empty(count, np.uint64)
    codes, times = np.empty(2 * base, np.int64), np.empty(2 * base, np.int64)
    for b in range(len(names)):
        first = 2 * base * b
        for k in range(len(goal.sizes)):
            if goal.sizes[k] > size + 1:
                continue
            _next_grams(goal, paths[b], size, k, codes, times)
            for x in range(2 * base):
                to_linear[first + x] += _weight(goal.codes, goal.slots, goal.weights, codes[x])
                to_squared[first + x] += goal.factors[k] * (2 * times[x] + 1)
                to_names[first + x] += mix(codes[x])
        head, tail = _encode(paths[b], 0, n - 1, base), _encode(paths[b], size - n + 1, size, base)
        for at in range(first, first + base):
            x = at - first
            states[at] = pair(to_names[at], pair(head, (tail * base + x) % power))
            states[at + base] = pair(to_names[at + base], pair((x * power + head) // base, tail))
    return to_linear, to_squared, to_names, states


@compiled
def _next_grams(goal: NGramObjective, y: np.ndarray, size: int, k: int, codes: np.ndarray, times: np.ndarray) -> None:
    """The n-grams that y gets by each letter at its end, then before it, and how often it has them already."""
    n, base, offset = goal.sizes[k], goal.base, goal.offsets[k]
    power = base ** (n - 1)
    tail, head = _encode(y, size - n + 1, size, base), _encode(y, 0, n - 1, base)
    for x in range(base):
        codes[x], codes[base + x] = offset + tail * base + x, offset + x * power + head
        times[x] = times[base + x] = 0
    for i in range(size - n + 1):
        code = _encode(y, i, i + n, base)
        if code // base == tail:
            times[code % base] += 1
        if code % power == head:
            times[base + code // power] += 1


@compiled
def _choose_distinct(
    goal: NGramObjective, linear: np.ndarray, squared: np.ndarray, keys: np.ndarray, most: int
) -> np.ndarray:
    """Positions of the ``most`` best scores, in single precision and without the prior, with distinct keys."""
    chosen, scores, count = np.empty(most, np.int64), np.empty(most, np.float32), 0
    for c in range(len(keys)):
        score = np.float32(_apply_rule(linear[c], squared[c], goal.normalised))
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
def _climb(goal: NGramObjective, y: np.ndarray, size: int, pool: Pool) -> None:
    """Make the best edit of one letter as long as the score grows; offer the result."""
    held, edited = np.empty((len(goal.sizes), len(y)), np.int64), np.empty_like(y)
    while True:
        linear, squared, name = _measure(goal, y, size, held)
        score = _score(goal, linear, squared, size)
        best, at, cut, letter = _best_edit(goal, y, size, linear, squared, held)
        if not _beats(best, score):
            _offer(pool, y, size, score, name)
            return
        size = _edit(y, size, at, cut, letter, edited)
        _copy(edited, size, y)


@compiled
def _best_edit(  # type: ignore[no-untyped-def] # returns a score, two places and a letter
    goal: NGramObjective, y: np.ndarray, size: int, linear: float, squared: float, held: np.ndarray
):
    """The best string that is y with one letter inserted (cut = 0), substituted or deleted (cut = 1), if it is better.

    Only the n-grams that touch the place change. Each new one costs its factor at least, more if y has it elsewhere:
    most edits are ruled out by the first, without looking for the n-gram in y.
    """
    edited, kept, fresh = np.empty_like(y), held.copy(), np.empty((len(held), goal.sizes[-1]), np.int64)
    best, where = _score(goal, linear, squared, size), (0, 0, -1)
    for at in range(size + 1):
        for cut in range(min(2, size + 1 - at)):
            lost, lost_squared = _cut_grams(goal, held, size, at, cut, kept)
            for letter in range(-cut, goal.base):
                new = size - cut + (letter >= 0)
                if new >= len(goal.prior) or goal.prior[new] == -np.inf:
                    continue
                _edit(y, size, at, cut, letter, edited)
                gained, least = _add_grams(goal, edited, new, at, letter >= 0, fresh)
                total, rest = linear - lost + gained, squared - lost_squared
                if total >= 0 and _score(goal, total, rest + least, new) <= best:
                    continue
                score = _score(goal, total, rest + _cost(goal, fresh, kept), new)
                if score > best:
                    best, where = score, (at, cut, letter)
    return best, where[0], where[1], where[2]


@compiled
def _edit(y: np.ndarray, size: int, at: int, cut: int, letter: int, out: np.ndarray) -> int:
    """Write y[:at] + letter + y[at + cut:], without a letter if it is −1; return the new size."""
    put = 1 if letter >= 0 else 0
    _copy(y, at, out)
    if put:
        out[at] = letter
    _copy(y[at + cut :], size - at - cut, out[at + put :])
    return size - cut + put


@compiled
def _cut_grams(
    goal: NGramObjective, held: np.ndarray, size: int, at: int, cut: int, kept: np.ndarray
) -> tuple[float, float]:
    """What the n-grams that touch the letters from at to at + cut add to ⟨w, φ⟩ and ‖φ‖²; the others are kept."""
    linear = squared = 0.0
    for k in range(len(goal.sizes)):
        n = goal.sizes[k]
        _copy(held[k], size, kept[k])
        for first in range(max(0, at - n + 1), min(at + cut - 1, size - n) + 1):
            squared += goal.factors[k] * (2 * _count(kept[k, :size], held[k, first]) - 1)
            linear += _weight(goal.codes, goal.slots, goal.weights, held[k, first])
            kept[k, first] = -1
    return linear, squared


@compiled
def _add_grams(
    goal: NGramObjective, y: np.ndarray, size: int, at: int, put: int, fresh: np.ndarray
) -> tuple[float, float]:
    """What the n-grams that touch the letters from at to at + put add to ⟨w, φ⟩, and to ‖φ‖² if each is new."""
    linear = least = 0.0
    fresh[:] = -1
    for k in range(len(goal.sizes)):
        n = goal.sizes[k]
        first = max(0, at - n + 1)
        for i in range(first, min(at + put - 1, size - n) + 1):
            fresh[k, i - first] = goal.offsets[k] + _encode(y, i, i + n, goal.base)
            linear += _weight(goal.codes, goal.slots, goal.weights, fresh[k, i - first])
            least += goal.factors[k]
    return linear, least


@compiled
def _cost(goal: NGramObjective, fresh: np.ndarray, kept: np.ndarray) -> float:
    """What the fresh n-grams add to ‖φ‖² beside those kept."""
    cost = 0.0
    for k in range(len(fresh)):
        for j in range(fresh.shape[1]):
            if fresh[k, j] >= 0:
                times = _count(kept[k], fresh[k, j]) + _count(fresh[k, :j], fresh[k, j])
                cost += goal.factors[k] * (2 * times + 1)
    return cost


@compiled
def _measure(goal: NGramObjective, y: np.ndarray, size: int, held: np.ndarray) -> tuple[float, float, np.uint64]:
    """⟨w, φ(y)⟩, ‖φ(y)‖² and a name for the n-grams of y, which are written to held, by n and by place."""
    linear, squared, name = 0.0, 0.0, np.uint64(0)
    held[:] = -1
    for k in range(len(goal.sizes)):
        for first in range(size - goal.sizes[k] + 1):
            code = goal.offsets[k] + _encode(y, first, first + goal.sizes[k], goal.base)
            linear += _weight(goal.codes, goal.slots, goal.weights, code)
            squared += goal.factors[k] * (2 * _count(held[k, :first], code) + 1)
            name += mix(code)
            held[k, first] = code
    return linear, squared, name


@compiled
def _apply_rule(linear: float, squared: float, normalised: bool) -> float:
    """The paper's rule, 2⟨w, φ⟩ − ‖φ‖², with φ / ‖φ‖ in place of φ if the kernel is normalised."""
    if not normalised:
        return 2 * linear - squared
    return 2 * linear / np.sqrt(squared) - 1 if squared > 0 else -np.inf


@inlined
def _score(goal: NGramObjective, linear: float, squared: float, size: int) -> float:
    return _apply_rule(linear, squared, goal.normalised) + goal.prior[size]


@compiled
def _beats(score: float, other: float) -> bool:
    """Whether a score is above another by more than rounding, which could send climbs in circles."""
    return score - other > EQUAL * (1 + abs(score))


@compiled
def _offer(pool: Pool, y: np.ndarray, size: int, score: float, name: np.uint64) -> None:
    """Insert y behind those that score the same, unless its n-grams are in the pool already."""
    at = len(pool.sizes) - 1
    for j in range(len(pool.sizes)):
        if pool.sizes[j] == size and pool.names[j] == name:
            return
    if not _beats(score, pool.scores[at]):
        return
    while at > 0 and _beats(score, pool.scores[at - 1]):
        _copy(pool.letters[at - 1], pool.sizes[at - 1], pool.letters[at])
        pool.sizes[at], pool.scores[at], pool.names[at] = pool.sizes[at - 1], pool.scores[at - 1], pool.names[at - 1]
        at -= 1
    _copy(y, size, pool.letters[at])
    pool.sizes[at], pool.scores[at], pool.names[at] = size, score, name


@compiled
def _copy(source: np.ndarray, size: int, to: np.ndarray) -> None:
    for i in range(size):  # assigning slices compiles for seconds
        to[i] = source[i]


@compiled
def _encode(y: np.ndarray, start: int, stop: int, base: int) -> int:
    """The letters from start to stop as one number."""
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


@inlined
def _weight(codes: np.ndarray, slots: np.ndarray, weights: np.ndarray, code: int) -> float:
    """The weight of an n-gram, zero if no anchor has it."""
    at = find(slots, codes, code)
    return weights[at] if at >= 0 else 0.0

"""Decoding strings from the n-grams that their coordinates ask for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from dsokr import kernels
from dsokr.basis import Rule, SketchedBasis, check_rule, embedded_scores
from dsokr.compiled import compiled, in_shares
from dsokr.decoders.base import Decoded, Decoder
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.errors import InputError
from dsokr.kernels import Kernel
from dsokr.kernels.features import require_integer
from dsokr.kernels.hashing import mix, pair
from dsokr.kernels.strings import encoded
from dsokr.outputs import Outputs, take
from dsokr.ragged import starts_of
from dsokr.rounding import single

MARGIN = 2  # letters by which an answer may be longer than all known strings
ROWS = 256  # rows of coefficients whose n-grams are weighed at once
SHARE = 8  # rows that a thread decodes at once
EQUAL = 1e-9  # up to which scores, which are made of counts, are equal


@dataclass(frozen=True)
class NGram(Decoder):
    """max_y 2⟨w, φ(y)⟩ − ‖φ(y)‖² over all strings y of letters seen in training, for bases of the NGram kernel.

    φ(y) counts the n-grams of y, and w = Σ_j c_j φ(a_j) with c = (Ω R)ᵀ z says how often the prediction wants each.
    For the normalised kernel the problem is max_y 2⟨w, φ(y)⟩ / ‖φ(y)‖ − 1. A string is a path along n-grams that
    overlap, but the second time it takes one costs more than the first, so that no shortest path solves this. A search
    does: a beam grows strings from the best n-grams, a letter at either end at a time; then letters are substituted,
    inserted and deleted as long as that helps, in the best strings of the beam and in the best known ones. The answer
    need not be the best of all strings, but is never worse than the best known one.

    Strings with the same n-grams in another order, such as "abaca" and "acaba" for n = 2 (the Eulerian paths of one
    graph), are one to the kernel and cannot be told apart. A known string then comes first, else the first found.

    Parameters
    ----------
    beam : strings kept at each length.
    starts : how many known strings, and how many that the beam found, are improved letter by letter.
    shortest, longest : how many letters an answer has. By default as many as the shortest known string, and two more
        than the longest. If limits of one's own exclude known strings, these are no answers either.
    length_prior : λ ≥ 0, adds λ log P(length of y) to what is maximised (not to the scores given back), where P is
        the share of the known strings with that length, every length allowed counted once more. Off by default.
    rule : by which the strings found and the known ones are compared in the end, see
        :func:`dsokr.basis.embedded_scores`. The search itself always follows ``"kernel"``, the paper's: by the others,
        n-grams that no anchor has would cost nothing.

    With an alphabet of A letters and strings of L, a row takes O(L · beam · (L + A)) for the beam, and for every letter
    improved O(L · A) trials of O(L) each at most; most are ruled out in O(n).

    >>> from dsokr import sketches
    >>> from dsokr.basis import sketch_basis
    >>> words = ["learning", "kernel", "nest", "learn", "earn"]
    >>> basis = sketch_basis(kernels.NGram(2), words, sketches.Full(), generator=torch.Generator())
    >>> NGram().decode(basis, basis.embed(["learnest"]), EmbeddedOutputs(basis, words)).outputs
    ['learnest']
    """

    beam: int = 128
    starts: int = 2
    shortest: int | None = None
    longest: int | None = None
    length_prior: float = 0.0
    rule: Rule = "kernel"

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("starts", 1), ("shortest", 0), ("longest", 0)):
            if getattr(self, name) is not None:
                require_integer(self, name, getattr(self, name), least)
        if not 0 <= self.length_prior < np.inf:
            raise InputError(f"NGram.length_prior must be finite and not negative. Got {self.length_prior}.")
        check_rule(self.rule)

    def check(self, kernel: Kernel) -> None:
        if not isinstance(_plain(kernel), kernels.NGram):
            raise InputError(
                f"NGram decodes bases of the NGram kernel, normalised or not. Got {kernel}. "
                "Use Candidates(), or NGram((2, 3)) in place of a sum of NGram kernels."
            )

    def scoring_rule(self) -> Rule:
        return self.rule

    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        z = self.checked(basis, z, known)
        if not len(z):
            return Decoded(_in_form_of(known.outputs, []), z.new_empty(0))
        _, starts = encoded(known.outputs)
        space = Space.of(basis, known.outputs)
        prior = self._log_prior(space, known.outputs)
        allowed = Allowed.of(basis, known, np.diff(starts), prior)
        parts = [self._decoded(basis, block, allowed, space, prior) for block in z.split(ROWS)]
        strings = list(chain.from_iterable(part.outputs for part in parts))
        return Decoded(_in_form_of(known.outputs, strings), torch.cat([part.scores for part in parts]))

    def _log_prior(self, space: Space, known: Outputs) -> np.ndarray:  # (longest that occurs + 1,)
        """λ log P(length) for every length, −∞ for those that are not allowed."""
        lengths = np.array([len(y) for y in known])
        shortest = int(lengths.min()) if self.shortest is None else self.shortest
        longest = int(lengths.max()) + MARGIN if self.longest is None else self.longest
        if space.grams.normalised:
            shortest = max(shortest, int(space.grams.sizes[0]))  # a string without n-grams has no direction
        seed = space.seeds.shape[1]
        if longest < max(shortest, seed):
            raise InputError(
                f"NGram.longest must be at least {max(shortest, seed)}: answers have {shortest} letters or more, "
                f"and grow from n-grams of {seed}. Got {longest}."
            )
        counts = 1 + np.bincount(lengths, minlength=longest + 1)
        prior, allowed = np.full(len(counts), -np.inf), slice(shortest, longest + 1)
        prior[allowed] = self.length_prior * np.log(counts[allowed] / counts[allowed].sum())
        return prior

    def _decoded(self, basis: SketchedBasis, z: Tensor, known: Allowed, space: Space, prior: np.ndarray) -> Decoded:
        """The strings for one block of coefficients, as a list."""
        nearest = known.top(z, self.starts, "kernel").cpu()
        starts = space.numbered(take(known.outputs, nearest.flatten()), len(prior) - 1)
        weights = space.weights(basis, z)
        found = Pool.empty(len(z), 2 * self.starts, len(prior) - 1)

        def work(start: int, stop: int) -> None:
            _search(start, stop, weights, space.grams, space.seeds, prior, self.beam, *starts, nearest.shape[1], found)

        in_shares(work, len(z), SHARE)
        if self.rule != "kernel":
            return self._by_rule(basis, z, known, space.spelled(found), prior)
        scores = found.scores[:, 0] - prior[found.sizes[:, 0]]
        return Decoded([row[0] for row in space.spelled(found)], torch.from_numpy(scores).to(z.device))

    def _by_rule(
        self, basis: SketchedBasis, z: Tensor, known: Allowed, found: list[list[str]], prior: np.ndarray
    ) -> Decoded:
        """The best by ``rule`` of the strings found for each row and the best known one."""
        best = take(known.outputs, known.top(z, 1, self.rule).flatten())
        found = [[y, *row] for y, row in zip(best, found, strict=True)] if len(best) else found
        flat = list(chain.from_iterable(found))
        embedding, diag = basis.embed(flat), basis.diag(flat)
        bonus = torch.from_numpy(prior[[len(y) for y in flat]]).to(z)
        strings, scores, start = [], [], 0
        for i, row in enumerate(found):
            mine = slice(start, start := start + len(row))
            values = embedded_scores(z[i : i + 1], embedding[mine], diag[mine], self.rule)[0]
            at = int((values + bonus[mine]).argmax())
            strings.append(row[at])
            scores.append(values[at])
        return Decoded(strings, torch.stack(scores))


@dataclass(frozen=True, eq=False)
class Allowed:
    """The known strings of allowed lengths, by what is added to their scores: of one length each, or all at once."""

    outputs: Outputs  # all known ones
    groups: list[tuple[EmbeddedOutputs, Tensor, float]]  # strings, their places among the outputs, the prior

    @staticmethod
    def of(basis: SketchedBasis, known: EmbeddedOutputs, lengths: np.ndarray, prior: np.ndarray) -> Allowed:
        added = prior[lengths]
        groups = []
        for value in np.unique(added[added > -np.inf]):
            at = torch.from_numpy(np.flatnonzero(added == value)).to(basis.device)
            same = known if len(at) == len(added) else _part(basis, known, at)
            groups.append((same, at, float(value)))
        return Allowed(known.outputs, groups)

    def top(self, z: Tensor, k: int, rule: Rule) -> Tensor:  # (n, at most k)
        """Places of the best known strings by their score and prior."""
        scores, places = [z.new_empty(len(z), 0)], [torch.empty(len(z), 0, dtype=torch.long, device=z.device)]
        for strings, at, value in self.groups:
            best = strings.top(z, k, rule)
            scores.append(best.scores + value)
            places.append(at[best.indices])
        order = single(torch.cat(scores, dim=1)).sort(dim=1, descending=True, stable=True).indices[:, :k]
        return torch.cat(places, dim=1).gather(1, order)


def _part(basis: SketchedBasis, known: EmbeddedOutputs, at: Tensor) -> EmbeddedOutputs:
    embedding, diag = known.coordinates()
    return EmbeddedOutputs(basis, take(known.outputs, at), coordinates=(embedding[at], diag[at]))


def _plain(kernel: Kernel) -> Kernel:
    return kernel.kernel if isinstance(kernel, kernels.NormalizedFeatures) else kernel


def _in_form_of(known: Outputs, strings: list[str]) -> Outputs:
    """An array of strings if the known ones are in an array, else a list."""
    if isinstance(known, np.ndarray):
        return np.array(strings, dtype=object if known.dtype == object else np.str_)
    return strings


class Grams(NamedTuple):
    """The n-grams that anchors have, as numbers: offsets[k] plus the letters in base ``base``, for n = sizes[k]."""

    codes: np.ndarray  # (grams,)
    slots: np.ndarray  # a hash table of positions in codes
    sizes: np.ndarray  # ascending
    offsets: np.ndarray
    factors: np.ndarray  # the kernel's weights w_n
    base: int
    normalised: bool


@dataclass(frozen=True, eq=False)
class Space:
    """The strings over an alphabet, seen through the n-grams of a kernel."""

    alphabet: str
    vocabulary: list[list[str]]  # for every n, the n-grams that anchors have
    grams: Grams
    seeds: np.ndarray  # the longest of them, from which strings grow: (seeds, n)

    @staticmethod
    def of(basis: SketchedBasis, known: Outputs) -> Space:
        kernel = cast(kernels.NGram, _plain(basis.kernel))
        lengths = (kernel.n,) if isinstance(kernel.n, int) else kernel.n
        factors = dict(sorted(zip(lengths, kernel.weights or (1.0,) * len(lengths), strict=True)))
        alphabet = "".join(sorted(set(chain.from_iterable(chain(basis.anchors, known)))))
        if len(alphabet) ** max(factors) > 2**61:
            raise InputError(
                f"NGram decodes up to 2⁶¹ different n-grams. Got {len(alphabet)} letters and {kernel}: decrease n."
            )
        vocabulary = [sorted({y[i : i + n] for y in basis.anchors for i in range(len(y) - n + 1)}) for n in factors]
        sizes = np.array(list(factors))
        offsets = starts_of(len(alphabet) ** sizes)[:-1]
        letters = [_numbered(names, alphabet, n)[0] for names, n in zip(vocabulary, factors, strict=True)]
        codes = np.concatenate(
            [
                offset + table @ len(alphabet) ** np.arange(n)[::-1]
                for table, n, offset in zip(letters, sizes, offsets, strict=True)
            ]
        )
        normalised = basis.kernel is not kernel
        grams = Grams(codes, _slots(codes), sizes, offsets, np.array(list(factors.values())), len(alphabet), normalised)
        return Space(alphabet, vocabulary, grams, [table for table in letters if len(table)][-1])

    def weights(self, basis: SketchedBasis, z: Tensor) -> np.ndarray:  # (n, grams)
        """w = Σ_j c_j φ(a_j), c = (Ω R)ᵀ z, at every n-gram: what a string gains by having it once more."""
        c = z @ basis.projection if basis.weights is None else z @ basis.projection @ basis.weights
        if self.grams.normalised:
            c = c / _plain(basis.kernel).diag(basis.anchors).sqrt().to(c.device)
        parts = [
            kernels.NGram(int(n), (float(factor),)).against(basis.anchors, c)(names)
            for n, factor, names in zip(self.grams.sizes, self.grams.factors, self.vocabulary, strict=True)
        ]
        return torch.cat(parts).T.contiguous().cpu().numpy()

    def numbered(self, strings: Outputs, width: int) -> tuple[np.ndarray, np.ndarray]:  # (n, width), (n,)
        return _numbered(strings, self.alphabet, width)

    def spelled(self, pool: Pool) -> list[list[str]]:
        """The strings of a pool, row by row."""
        return [
            ["".join([self.alphabet[x] for x in y[:size]]) for y, size in zip(*row, strict=True) if size >= 0]
            for row in zip(pool.letters.tolist(), pool.sizes.tolist(), strict=True)
        ]


def _numbered(strings: Outputs, alphabet: str, width: int) -> tuple[np.ndarray, np.ndarray]:  # (n, width), (n,)
    """Strings as the positions of their letters in the alphabet, filled up with zeros, and their lengths."""
    points, starts = encoded(strings)
    lengths = np.diff(starts)
    letters = np.zeros((len(lengths), width), np.int64)
    letters[np.arange(width) < lengths[:, None]] = np.searchsorted(np.array([ord(x) for x in alphabet]), points)
    return letters, lengths


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
def _search(
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
def _slots(codes: np.ndarray) -> np.ndarray:
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

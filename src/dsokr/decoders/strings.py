"""Decoding strings from the n-grams that their coordinates ask for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dsokr import kernels
from dsokr.basis import SketchedBasis
from dsokr.compute import run_in_threads
from dsokr.decoders._string_search import Grams, Pool, search, slots_of
from dsokr.decoders.base import Decoded, Decoder, combine_anchors
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.errors import InputError, check_integers, check_number, check_choice
from dsokr.kernels import Kernel
from dsokr.kernels.strings import encoded
from dsokr.outputs import Outputs, take
from dsokr.graphs import starts_of
from dsokr.rules import RULES, Rule, compare as single, score as embedded_scores

MARGIN = 2  # letters by which an answer may be longer than all known strings
ROWS = 256  # rows of coefficients whose n-grams are weighed at once
SHARE = 8  # rows that a thread decodes at once


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
        limits = {name: 0 for name in ("shortest", "longest") if getattr(self, name) is not None}
        check_integers(self, beam=1, starts=1, **limits)
        if not 0 <= self.length_prior < np.inf:
            raise InputError(f"NGram.length_prior must be finite and not negative. Got {self.length_prior}.")
        check_choice(self, "rule", RULES)

    def check(self, kernel: Kernel) -> None:
        if not isinstance(_plain(kernel), kernels.NGram):
            raise InputError(
                f"NGram decodes bases of the NGram kernel, normalised or not. Got {kernel}. "
                "Use Candidates(), or NGram((2, 3)) in place of a sum of NGram kernels."
            )

    def scoring_rule(self) -> Rule:
        return self.rule

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        _, starts = encoded(known.outputs)
        space = Space.of(basis, known.outputs)
        prior = self._log_prior(space, known.outputs)
        allowed = Allowed.of(known, np.diff(starts), prior)
        parts = [self._decoded(basis, block, allowed, space, prior) for block in z.split(ROWS)]
        strings = list(chain.from_iterable(part.outputs for part in parts))
        return strings, torch.cat([part.scores for part in parts])

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
            search(start, stop, weights, space.grams, space.seeds, prior, self.beam, *starts, nearest.shape[1], found)

        run_in_threads(work, len(z), SHARE)
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
    def of(known: EmbeddedOutputs, lengths: np.ndarray, prior: np.ndarray) -> Allowed:
        added = prior[lengths]
        groups = []
        for value in np.unique(added[added > -np.inf]):
            at = torch.from_numpy(np.flatnonzero(added == value)).to(known.basis.device)
            same = known if len(at) == len(added) else known.select(at)
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


def _plain(kernel: Kernel) -> Kernel:
    return kernel.kernel if isinstance(kernel, kernels.NormalizedFeatures) else kernel


def _in_form_of(known: Outputs, strings: list[str]) -> Outputs:
    """An array of strings if the known ones are in an array, else a list."""
    if isinstance(known, np.ndarray):
        return np.array(strings, dtype=object if known.dtype == object else np.str_)
    return strings


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
        grams = Grams(
            codes, slots_of(codes), sizes, offsets, np.array(list(factors.values())), len(alphabet), normalised
        )
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

"""Decoding strings from the n-grams that their coordinates ask for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr import kernels
from dsokr.basis import SketchedBasis
from dsokr.compute import run_in_threads
from dsokr.decoders.base import Decoder, Found, choose_best, combine_anchors
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.decoders.string_search import NGramObjective, Pool, search
from dsokr.errors import InputError, check_fields
from dsokr.graphs import starts_of
from dsokr.kernels import Kernel
from dsokr.kernels.hashing import build_table
from dsokr.kernels.strings import encode
from dsokr.outputs import Outputs, take
from dsokr.rules import Rule

MARGIN = 2  # letters by which an answer may be longer than all known strings
ROWS = 256  # rows of coordinates decoded at once
SHARE = 8  # rows that a thread takes at a time


@dataclass(frozen=True)
class NGram(Decoder):
    """max_y 2⟨w, φ(y)⟩ − ‖φ(y)‖² over all strings y of letters seen in training, for bases of the NGram kernel.

    φ(y) counts the n-grams of y, and w = Σ_j c_j φ(a_j) with c = (Ω R)ᵀ z says how often the prediction wants each.
    For the normalised kernel the problem is max_y 2⟨w, φ(y)⟩ / ‖φ(y)‖ − 1. A string is a path along overlapping
    n-grams, but taking one a second time costs more than the first, so this is not a shortest-path problem. It is
    solved by search: a beam grows strings from the best n-grams, one letter at either end at a time; then single
    letters are substituted, inserted and deleted as long as that helps, in the beam's best strings and in the best
    known ones. The answer need not be the best of all strings, but never scores less than the best known one.

    Strings with the same n-grams in another order, such as "abaca" and "acaba" for n = 2 (the Eulerian paths of one
    graph), are equal to the kernel. Of these a known string is preferred, else the first one found.

    :meth:`best` gives the k best of the known strings, the ends of all climbs and the beam's strings: no proof.

    Parameters
    ----------
    beam : strings kept at each length.
    starts : number of known strings, and of strings from the beam, that are improved letter by letter.
    shortest, longest : limits of an answer's length. By default the length of the shortest known string, and two
        more than the longest. Known strings outside of these limits are no answers either.
    length_prior : λ ≥ 0, adds λ log P(length of y) to what is compared (not to the scores returned), where P is the
        share of the known strings with that length, every length allowed counted once more. Off by default.
    rule : how the strings found and the known ones are compared in the end, see :mod:`dsokr.rules`. The search itself
        always follows ``"kernel"``, the paper's: by the others, n-grams that no anchor has would cost nothing.

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

    rated = 200

    def __post_init__(self) -> None:
        check_fields(self, shortest=0, longest=0)

    def check(self, kernel: Kernel) -> None:
        if not isinstance(_plain(kernel), kernels.NGram):
            raise InputError(
                f"NGram decodes bases of the NGram kernel, normalised or not. Got {kernel}. "
                "Use Candidates(), or NGram((2, 3)) in place of a sum of NGram kernels."
            )

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        return self.search(basis, z, known, 1)[:2]

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        space = Space.of(basis, known.outputs)
        lengths = np.array(list(map(len, known.outputs)))
        prior = self._log_prior(space, lengths)
        allowed = known.select(torch.from_numpy(np.flatnonzero(prior[lengths] > -np.inf)).to(z.device))
        parts = [self._search_block(space, block, allowed, prior, k) for block in z.split(ROWS)]
        rows = [part.rows + ROWS * number for number, part in enumerate(parts)]
        strings, scores, _ = zip(*parts, strict=True)
        return Found(list(chain.from_iterable(strings)), torch.cat(scores), torch.cat(rows))

    def _log_prior(self, space: Space, lengths: np.ndarray) -> np.ndarray:  # (longest that occurs + 1,)
        """λ log P(length) for every length, −∞ for those that are not allowed."""
        shortest = int(lengths.min()) if self.shortest is None else self.shortest
        longest = int(lengths.max()) + MARGIN if self.longest is None else self.longest
        if space.objective.normalised:
            shortest = max(shortest, int(space.objective.sizes[0]))  # strings without n-grams have no direction
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

    def _search_block(self, space: Space, z: Tensor, known: EmbeddedOutputs, prior: np.ndarray, k: int) -> Found:
        bonus = score_lengths(prior, known.outputs).to(z)
        starts = [take(known.outputs, row) for row in known.top(z, self.starts, "kernel", bonus).indices]
        pools = self._search(space, z, starts, prior, k)
        found = [space.spell(pool) for pool in pools]
        if self.rule == "kernel" and k == 1:
            first = [pool.scores[0] - prior[pool.sizes[0]] for pool in pools]
            rows = torch.arange(len(z), device=z.device)
            return Found([row[0] for row in found], torch.tensor(first, dtype=z.dtype, device=z.device), rows)
        best = known.top(z, k, self.rule, bonus)
        own = bonus[best.indices]
        strings, owners = list(chain.from_iterable(found)), np.repeat(np.arange(len(found)), list(map(len, found)))
        total = torch.cat([own.flatten(), score_lengths(prior, strings).to(z)])
        return choose_best(z, known, best._replace(scores=best.scores - own), strings, owners, self.rule, k, total)

    def _search(self, space: Space, z: Tensor, starts: list[list[str]], prior: np.ndarray, k: int) -> list[Pool]:
        """The best strings for every row, by the paper's rule."""
        pools, weights = cast(list[Pool], [None] * len(z)), space.weigh(z)

        def work(start: int, stop: int) -> None:
            for i in range(start, stop):
                goal = space.objective._replace(weights=weights[i], prior=prior)
                letters, sizes = space.number(starts[i], len(prior) - 1)
                pools[i] = search(goal, space.seeds, self.beam, self.starts, letters, sizes, k)

        run_in_threads(work, len(z), SHARE)
        return pools


def score_lengths(prior: np.ndarray, strings: list[str]) -> Tensor:  # (n,)
    """What the prior adds to the scores of strings, by their lengths."""
    return torch.from_numpy(prior[list(map(len, strings))])


def _plain(kernel: Kernel) -> Kernel:
    return kernel.kernel if isinstance(kernel, kernels.NormalizedFeatures) else kernel


@dataclass(frozen=True, eq=False)
class Space:
    """The strings over an alphabet, seen through the n-grams of a basis."""

    basis: SketchedBasis
    alphabet: np.ndarray  # code points, ascending
    counts: sp.csr_array  # (anchors, grams): how often each anchor has each n-gram, times the kernel's weight
    seeds: np.ndarray  # (seeds, n): the longest n-grams, from which strings grow
    objective: NGramObjective  # without weights and prior, which depend on rows and lengths

    @staticmethod
    def of(basis: SketchedBasis, known: Outputs) -> Space:
        kernel = cast(kernels.NGram, _plain(basis.kernel))
        lengths = (kernel.n,) if isinstance(kernel.n, int) else kernel.n
        pairs = sorted(zip(lengths, kernel.weights or (1.0,) * len(lengths), strict=True))
        sizes, factors = np.array([n for n, _ in pairs]), np.array([factor for _, factor in pairs])
        alphabet = np.unique(encode([*basis.anchors, *known])[0])
        base = len(alphabet)
        if base ** max(lengths) > 2**61:
            raise InputError(f"NGram decodes up to 2⁶¹ different n-grams. Got {base} letters and {kernel}: decrease n.")
        offsets = starts_of(base**sizes)[:-1]
        codes, owners, kinds = _find_grams(basis.anchors, alphabet, sizes)
        codes, columns = np.unique(offsets[kinds] + codes, return_inverse=True)
        counts = sp.csr_array((factors[kinds], (owners, columns)), shape=(len(basis.anchors), len(codes)))
        longest, nothing = kinds.max(), np.empty(0)
        seeds = (codes[codes >= offsets[longest], None] - offsets[longest]) // _powers(base, sizes[longest]) % base
        table, normalised = (codes, build_table(codes)), basis.kernel is not kernel
        objective = NGramObjective(nothing, *table, sizes, offsets, factors, base, normalised, nothing)
        return Space(basis, alphabet, counts, seeds, objective)

    def weigh(self, z: Tensor) -> np.ndarray:  # (n, grams)
        """w = Σ_j c_j φ(a_j) at every n-gram: what a string gains by having it once more."""
        c = combine_anchors(self.basis, z).cpu().numpy()
        if self.objective.normalised:
            c = c / _plain(self.basis.kernel).diag(self.basis.anchors).sqrt().numpy()
        return np.ascontiguousarray(c @ self.counts)

    def number(self, strings: list[str], width: int) -> tuple[np.ndarray, np.ndarray]:  # (n, width), (n,)
        """Strings as the positions of their letters in the alphabet, padded with zeros, and their lengths."""
        points, starts = encode(strings)
        letters = np.zeros((len(strings), width), np.int64)
        letters[np.arange(width) < np.diff(starts)[:, None]] = np.searchsorted(self.alphabet, points)
        return letters, np.diff(starts)

    def spell(self, pool: Pool) -> list[str]:
        rows = zip(self.alphabet[pool.letters], pool.sizes, strict=True)
        return ["".join(map(chr, points[:size])) for points, size in rows if size >= 0]


def _find_grams(strings: Outputs, alphabet: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All n-grams as numbers in base A; for each, the string that it is in and the position of its n in ``sizes``."""
    points, starts = encode(strings)
    letters, owner = np.searchsorted(alphabet, points), np.repeat(np.arange(len(strings)), np.diff(starts))
    parts = []
    for kind, n in enumerate(sizes):
        inside = np.flatnonzero(np.arange(n, n + len(letters)) <= starts[owner + 1])
        codes = letters[inside[:, None] + np.arange(n)] @ _powers(len(alphabet), n)
        parts.append((codes, owner[inside], np.full(len(inside), kind)))
    codes, owners, kinds = map(np.concatenate, zip(*parts, strict=True))
    return codes, owners, kinds


def _powers(base: int, n: int) -> np.ndarray:  # (n,)
    return base ** np.arange(n)[::-1]

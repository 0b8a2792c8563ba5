"""Why an output has its score: what each of its places, and each part of the input, contributes.

For kernels with an explicit feature map φ, ⟨z, ψ̃(y)⟩ = ⟨w, φ(y)⟩ with w = Σ_j c_j φ(a_j), a sum over the features of y.
Features are at places (atoms, letters, columns, items), so the score is a sum over places and a constant. For other
kernels, and for inputs, a contribution is the score lost by leaving a place out; these do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
import numpy as np
import scipy.sparse as sp
import torch
from markupsafe import Markup
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.decoders.base import combine_anchors
from dsokr.errors import InputError
from dsokr.estimator import DSOKR
from dsokr.files import replace_file
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import OnMolecules
from dsokr.kernels.sparse import Split
from dsokr.outputs import Outputs, as_outputs, count, take
from dsokr.regressors.inputs import check_inputs
from dsokr.rules import Rule, affine, check_rule, constant, score_pairs

BLOCK = 32  # outputs whose weights on all features are held at once
FOR, AGAINST = (0.35, 0.6, 1.0), (1.0, 0.55, 0.3)  # colours of the largest contributions: blue and orange
TILE = (260, 200)  # pixels of a drawing


@dataclass(frozen=True, eq=False)
class Explanation:
    """What the places of an output, or the parts of an input, contribute to a score.

    ``places`` are the positions of atoms, letters, columns, items or words; 0 if the whole output is one place.
    If ``exact``, the contributions and the constant add up to the score. Otherwise a contribution is the score lost by
    leaving the place out.
    """

    score: float
    contributions: np.ndarray  # (places,)
    places: np.ndarray  # (places,)
    constant: float | None  # the part of the score without a place; None if the contributions do not add up
    parts: tuple[str, ...] = ()  # the words or letters of an input that is a text

    @property
    def exact(self) -> bool:
        return self.constant is not None


def explain(
    model: DSOKR,
    X: Any,
    Y: Any,
    *,
    by: Literal["place", "feature"] = "place",
    exact: bool = False,
    rule: Rule | None = None,
) -> list[Explanation]:
    """Explain the score of output Y[i] for input X[i] by the places of Y[i]: atoms, letters, labels, items.

    ``by="feature"`` lists features by their 64-bit ids instead. ``exact`` refuses kernels without explicit features,
    for which places are left out one by one: a label or a number becomes 0, an atom or a letter is removed. ``rule`` is
    the model's if not given.

    >>> from dsokr import DSOKR, kernels
    >>> from dsokr.regressors import KernelRidge
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> model = DSOKR(kernels.Linear(), regressor=KernelRidge(), random_state=0).fit(X, (X > 0).astype(int))
    >>> explanation, = explain(model, X[:1], [[1, 1]])
    >>> bool(np.isclose(explanation.contributions.sum() + explanation.constant, explanation.score))
    True
    """
    z, ys = model.coefficients(X), as_outputs(Y, "Y")
    if by not in ("place", "feature"):
        raise InputError(f"by must be 'place' or 'feature'. Got {by!r}.")
    if len(z) != count(ys):
        raise InputError(f"Every input needs one output to explain. Got {len(z)} inputs and {count(ys)} outputs.")
    basis, rule = model.basis_, _check_rule(model, rule)
    z, psi, diag = basis.check_coordinates(z), basis.embed(ys), basis.diag(ys)
    scores = score_pairs(z, psi, diag, rule).tolist()
    anchors = basis.kernel.split(basis.anchors)
    if anchors is None and (exact or by == "feature"):
        raise InputError(f"{basis.kernel} has no explicit features, so that contributions would not add up to a score.")
    if anchors is None:
        one_by_one = (take(ys, slice(i, i + 1)) for i in range(len(scores)))
        return [_leave_out(basis, z[i : i + 1], y, scores[i], rule) for i, y in enumerate(one_by_one)]
    factor, offset = affine(rule, diag, torch.linalg.vecdot(psi, psi))
    rest = (offset + constant(rule, z)).tolist()
    shares = _share(basis, anchors, factor[:, None] * z, ys, by)
    return [Explanation(scores[i], *own, constant=rest[i]) for i, own in enumerate(shares)]


def _check_rule(model: DSOKR, rule: Rule | None) -> Rule:
    rule = model.decoder_.scoring_rule() if rule is None else rule
    check_rule(rule)
    return rule


def _share(
    basis: SketchedBasis, anchors: Split, z: Tensor, ys: Outputs, by: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Divide ⟨z_i, ψ̃(y_i)⟩ = ⟨w_i, φ(y_i)⟩, w_i = Σ_j c_ij φ(a_j), by places or features: shares and their places."""
    ids, columns = np.unique(anchors.parts.ids, return_inverse=True)
    starts, shape = anchors.parts.indptr[anchors.starts], (len(anchors), len(ids))
    table = sp.csr_array((anchors.parts.values, columns, starts), shape=shape)  # φ(a_j); entries of one feature add up
    for at in torch.arange(len(z)).split(BLOCK):
        split: Any = basis.kernel.split(take(ys, at))  # not None, as that of the anchors is not
        split = _by_feature(split) if by == "feature" else split
        shares = _weigh(combine_anchors(basis, z[at]).cpu().numpy() @ table, ids, split)
        yield from zip(np.split(shares, split.starts[1:-1]), np.split(split.places, split.starts[1:-1]), strict=True)


def _by_feature(split: Split) -> Split:
    whole = split.whole().parts
    alone = type(whole)(np.arange(len(whole.ids) + 1), whole.ids, whole.values)
    return Split(whole.indptr, whole.ids, alone)


def _weigh(w: np.ndarray, ids: np.ndarray, split: Split) -> np.ndarray:  # (places,)
    """⟨w_i, part⟩ for every part of output i; ``w`` has a column for each of the ``ids``, which are sorted."""
    parts = split.parts
    owner = np.repeat(np.arange(len(split)), np.diff(parts.indptr[split.starts]))
    at = np.searchsorted(ids, parts.ids).clip(max=len(ids) - 1)
    values = parts.values * w[owner, at] * (ids[at] == parts.ids)
    place = np.repeat(np.arange(len(parts)), np.diff(parts.indptr))
    return np.bincount(place, values, minlength=len(parts))


def _leave_out(basis: SketchedBasis, z: Tensor, y: Outputs, score: float, rule: Rule) -> Explanation:
    """Compare one output with the same output without each of its places. A single place has the whole score."""
    variants, places = _remove_each(basis.kernel.convert(y) if isinstance(basis.kernel, OnMolecules) else y)
    if len(places) <= 1:
        return Explanation(score, np.full(len(places), score), places, None)
    without = score_pairs(z.expand(len(places), -1), basis.embed(variants), basis.diag(variants), rule)
    return Explanation(score, score - without.cpu().numpy(), places, None)


def _remove_each(y: Outputs) -> tuple[Outputs, np.ndarray]:
    """The output without each of its labels, numbers, letters or atoms, and the positions of these."""
    if isinstance(y, Tensor):
        places = y[0].nonzero()[:, 0]
        variants = y.repeat(len(places), 1)
        variants[torch.arange(len(places)), places] = 0
        return variants, places.cpu().numpy()
    if sp.issparse(y):
        n, keep = y.nnz, ~np.eye(y.nnz, dtype=bool)
        values, columns = (np.tile(array, (n, 1))[keep] for array in (y.data, y.indices))
        starts = (n - 1) * np.arange(n + 1, dtype=y.indptr.dtype)
        return sp.csr_array((values, columns, starts), shape=(n, y.shape[1])), y.indices.astype(np.int64)
    if isinstance(y, GraphBatch) or isinstance(y[0], Graph):
        batch = GraphBatch.of(y)
        n = len(batch.labels)
        return GraphBatch.joined([batch] * max(n, 1)).induced(~np.eye(n, dtype=bool).ravel()), np.arange(n)
    if isinstance(y[0], str):
        return [y[0][:i] + y[0][i + 1 :] for i in range(len(y[0]))], np.arange(len(y[0]))
    raise InputError(f"Nothing can be left out of outputs of type {type(y[0]).__name__}.")


def explain_input(model: DSOKR, x: Any, y: Any, *, reference: Any = None, rule: Rule | None = None) -> Explanation:
    """Explain the score of the output y for the input x by the parts of x: the score lost by leaving each out.

    Parts are the words of a text with spaces, the letters of another text, or the columns of a row; x may be a data
    frame or a sparse matrix of one row. A column that is left out gets its value in the row ``reference``, say the mean
    of the training inputs. Without a reference it is missing if the model takes missing values, and 0 otherwise, as in
    sparse rows. The only word or letter of a text has the whole score.
    """
    check_is_fitted(model, "regressor_")
    rule, ys = _check_rule(model, rule), as_outputs(y if sp.issparse(y) else [y], "y")
    variants, parts, places = _vary_text(model, x) if isinstance(x, str) else _vary_row(model, x, reference)
    z, psi, diag = model.regressor_.predict(model.reader_.read(variants)), model.basis_.embed(ys), model.basis_.diag(ys)
    scores = score_pairs(z, psi.expand(len(z), -1), diag.expand(len(z)), rule).cpu().numpy()
    lost = scores[0] - scores[1:] if len(scores) > 1 else scores[: len(places)]  # a single word has the whole score
    return Explanation(scores[0].item(), lost, places, None, parts)


def _vary_text(model: DSOKR, text: str) -> tuple[list[str], tuple[str, ...], np.ndarray]:
    """The text, then the text without each of its words or letters; the words or letters; and their positions."""
    encoder = model.reader_.encoder
    if encoder is not None and [column.kind for column in encoder.columns] == ["smiles"]:
        raise InputError("Inputs that are SMILES cannot be explained: without a letter they are other molecules.")
    words = tuple(text.split())
    parts, between = (words, " ") if len(words) > 1 else (tuple(text.strip()), "")
    without = [between.join(parts[:i] + parts[i + 1 :]) for i in range(len(parts))]
    return [text, *without] if len(parts) > 1 else [text], parts, np.arange(len(parts))


def _vary_row(model: DSOKR, x: Any, reference: Any) -> tuple[Any, tuple[str, ...], np.ndarray]:
    """The row, then the row without each of its columns, and the columns' positions; of sparse rows, those stored."""
    takes_missing = get_tags(model).input_tags.allow_nan
    given = x if hasattr(x, "shape") and len(x.shape) > 1 else [x] if not isinstance(x, Tensor) else x[None]
    row = check_inputs(model, given, reset=False, allow_missing=takes_missing)
    if sp.issparse(row) and row.shape[0] == 1:
        variants, places = _remove_each(sp.csr_array(row))
        return sp.vstack([row, variants], format="csr"), (), places
    if not isinstance(row, np.ndarray | Tensor) or row.ndim != 2 or len(row) != 1:
        raise InputError("explain_input takes one input: a text, or a row of numbers or cells.")
    is_object, d = row.dtype == object, row.shape[1]
    rows = np.tile(np.asarray(row, object if is_object else np.float64), (d + 1, 1))
    left_out = None if is_object else np.nan if takes_missing and isinstance(row, np.ndarray) else 0.0
    if reference is not None and np.shape(reference) != (d,):
        raise InputError(f"The reference must be a row of {d} values, as the input. Got shape {np.shape(reference)}.")
    rows[1 + np.arange(d), np.arange(d)] = left_out if reference is None else np.asarray(reference)
    return torch.from_numpy(rows).to(row) if isinstance(row, Tensor) else rows, (), np.arange(d)


class Answer(NamedTuple):
    """An answer as a page shows it: a drawing or text, of :func:`paint_molecule` or :func:`paint_text`, and why."""

    shown: str
    name: str
    why: Explanation


class Case(NamedTuple):
    """An input as a page shows it, and its answers, best first."""

    shown: str
    answers: Sequence[Answer]


class Colored(NamedTuple):
    """An input or an output, to be shown with every part on the colour of its contribution."""

    parts: Sequence[str]  # words, letters, labels, columns; of a drawing, the numbers of atoms
    contributions: np.ndarray  # (parts,)
    between: str = " "
    drawing: str = ""  # SVG

    def html(self) -> Markup:
        return Markup(self.drawing) if self.drawing else paint_text(*self[:3])


class Reasons(NamedTuple):
    """Why an output has its score for an input, and how to show both."""

    why: Explanation
    output: Colored
    input: Colored | None  # None if it has no parts that could be left out


def _mix_colors(contributions: np.ndarray) -> np.ndarray:  # (n,) -> (n, 3), from 0 to 1
    """White for 0, the colours ``FOR`` and ``AGAINST`` for the largest contribution by absolute value."""
    strength = np.abs(contributions) / max(np.abs(contributions).max(initial=0), np.finfo(float).tiny)
    full = np.where(contributions[:, None] > 0, FOR, AGAINST)
    return 1 - strength[:, None] * (1 - full)


def name_colors(contributions: np.ndarray) -> list[str]:
    """Return the colours of contributions as CSS writes them.

    >>> name_colors(np.array([0.5, 0.0]))
    ['rgb(89, 153, 255)', 'rgb(255, 255, 255)']
    """
    return [f"rgb{tuple(color)}" for color in np.rint(255 * _mix_colors(contributions)).astype(int).tolist()]


def paint_text(parts: Sequence[str], contributions: np.ndarray, between: str = " ") -> Markup:
    """Return words, letters or labels as HTML, each on the colour of its contribution.

    >>> paint_text(["<b>"], np.array([0.5]))
    Markup('<span style="background: rgb(89, 153, 255)" title="+0.5">&lt;b&gt;</span>')
    """
    if len(parts) != len(contributions):
        raise InputError(f"Every part needs a contribution. Got {len(parts)} and {len(contributions)}.")
    span, colors = Markup('<span style="background: {}" title="{:+.3g}">{}</span>'), name_colors(contributions)
    return Markup(between).join(span.format(*one) for one in zip(colors, contributions, parts, strict=True))


def paint_molecule(molecule: Graph | str, contributions: np.ndarray) -> Markup:
    """Draw a graph or SMILES as SVG, each atom on the colour of its contribution."""
    from dsokr import chem  # RDKit is needed here only

    svg = chem.draw([molecule], size=TILE, colors=[_mix_colors(contributions).tolist()])
    return Markup(svg[svg.find("<svg") :])


def write_page(path: str | Path, cases: Sequence[Case], title: str = "Why these answers") -> None:
    """Write inputs and their answers as one self-contained HTML page."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("dsokr", "."), autoescape=True)
    page = environment.get_template("explain.html.j2").render(cases=cases, title=title)
    with replace_file(Path(path)) as draft:
        draft.write_text(page, encoding="utf-8")

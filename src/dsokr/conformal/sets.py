"""Prediction sets, confidence and safe answers of fitted models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sklearn.utils.validation import check_consistent_length
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsokr.conformal.calibration import Calibration, Coverage
from dsokr.decoders import Candidates, EmbeddedOutputs
from dsokr.errors import InputError, ModelFolderError, check_types
from dsokr.estimator import DSOKR
from dsokr.files import ZEROS, read_sealed, seal
from dsokr.graphs import GraphBatch
from dsokr.outputs import Outputs, as_outputs, count, keys, take
from dsokr.regressors.inputs import identify_inputs
from dsokr.rules import score_pairs
from dsokr.saving import Tensors, pack, unpack

FILE = "conformal.safetensors"
LISTED, SEARCHED = 1000, 50  # best outputs of an input that A(x) sums over: of a list, and of a search


class PredictionSet(NamedTuple):
    """Outputs that belong to a set, best first; ``size`` counts all members, None where they cannot be counted."""

    outputs: Any
    probabilities: Tensor  # (k,)
    size: int | None
    indices: Tensor | None = None  # (k,), positions among the candidates, if answers come from a list


class Answers(NamedTuple):
    """The best output of every input, the probability that it is right, and whether it is safe to give it."""

    outputs: Any
    confidence: Tensor  # (n,)
    given: Tensor  # (n,) bool


class Best(NamedTuple):
    """The best outputs of every input, and their scores."""

    outputs: list[Outputs]  # canonical, for every input; none for a list
    indices: Tensor | None  # (n, k), positions in the list
    scores: Tensor  # (n, k), best first, −∞ where there are fewer


class Conformal:
    """Adds guarantees to the answers of a fitted model.

    >>> import numpy as np
    >>> from dsokr import kernels
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 4))
    >>> Y = (X[:, :3] + 0.3 * rng.normal(size=(400, 3)) > 0).astype(int)
    >>> model = DSOKR(kernels.Tanimoto(), random_state=0).fit(X[:200], Y[:200])
    >>> sure = Conformal(model).calibrate(X[200:300], Y[200:300])
    >>> sure.predict_set(X[300:301], coverage=0.9)[0].size
    3
    >>> bool(sure.contains(X[300:], Y[300:], coverage=0.9).double().mean() > 0.8)
    True
    """

    def __init__(self, model: DSOKR, candidates: Any = None):
        self.model = model
        self.known: EmbeddedOutputs = model.known_ if candidates is None else EmbeddedOutputs(model.basis_, candidates)
        self.decoder = Candidates(model.decoder_.scoring_rule()) if candidates is not None else model.decoder_

    @property
    def is_list(self) -> bool:
        """Whether answers are picked from a list."""
        return isinstance(self.decoder, Candidates)

    @property
    def calibration(self) -> Calibration:
        if not hasattr(self, "calibration_"):
            raise InputError("Call calibrate first: a guarantee needs pairs that the model was not trained on.")
        return self.calibration_

    def calibrate(self, X: Any = None, Y: Any = None, groups: Any = None, seed: int = 0) -> Conformal:
        """Learn from pairs that the model was not trained on; without any, from its own predictions out of fold.

        A quarter of the pairs, drawn at random, turns scores into probabilities; the others calibrate. With ``groups``,
        a value for every pair, sets hold the right output as often as asked in each group. Predictions out of fold cost
        no pairs, but the guarantee is then approximate: they come from models of fewer pairs, and the weights of the
        stack were chosen by them.
        """
        z, Y = self._read_pairs(X, Y)
        best = self.find_best(z)
        own = torch.where(self._is_listed(Y), self.score_pairs(z, Y), -torch.inf)
        self.calibration_ = Calibration.of(z, best.scores, own, self.is_right(best, Y), groups, seed)
        self.pairs_ = {"z": z, "Y": Y, "groups": None if groups is None else list(map(str, groups))}
        return self

    def predict_set(
        self, X: Any, coverage: float = 0.9, groups: Any = None, allow_empty: bool = False, most: int = LISTED
    ) -> list[PredictionSet]:
        """For every input, at most ``most`` outputs of its set, with their probabilities.

        A set always has the best output, unless ``allow_empty``.
        """
        calibration, z = self.calibration, self.model.coefficients(X)
        best = self.find_best(z)
        least = calibration.find_threshold(z, best.scores, coverage, groups, allow_empty)
        is_longer = bool((best.scores[:, -1] >= least).any()) and most > best.scores.shape[1]
        found = self.find_best(z, most) if is_longer else best
        p = calibration.find_probabilities(z, best.scores, found.scores)
        sizes = self.decoder.count(self.model.basis_, z, self.known, least)
        sets = []
        for i, k in enumerate((found.scores >= least[:, None]).sum(dim=1).clamp(max=most).tolist()):
            at = None if found.indices is None else found.indices[i, :k]
            outputs = take(found.outputs[i], slice(k)) if at is None else take(self.known.outputs, at)
            size = None if sizes is None else int(sizes[i])
            sets.append(PredictionSet(self.known.form.restore(outputs), p[i, :k], size, at))
        return sets

    def contains(
        self, X: Any, Y: Any, coverage: float = 0.9, groups: Any = None, allow_empty: bool = False
    ) -> Tensor:  # (n,) bool
        """Whether the set of each input has the given output; exact, however large the set is."""
        calibration, z, Y = self.calibration, self.model.coefficients(X), as_outputs(Y)
        check_consistent_length(z, Y)
        least = calibration.find_threshold(z, self.find_best(z).scores, coverage, groups, allow_empty)
        return self._is_listed(Y) & (self.score_pairs(z, Y) >= least)

    def check(self, X: Any, Y: Any, coverage: float = 0.9, groups: Any = None) -> Coverage:
        """Test on further pairs whether sets hold the right output as often as asked."""
        return self.calibration.test(self.contains(X, Y, coverage, groups), coverage)

    def predict(self, X: Any, max_error: float | None = None) -> Answers:
        """The best output of every input, its confidence, and whether to give it.

        Answers are given where the confidence is so high that at most ``max_error`` of those given are wrong; this
        holds with probability 0.9 over the calibration pairs.
        """
        calibration = self.calibration
        least = -torch.inf if max_error is None else calibration.find_safe(max_error)
        z = self.model.coefficients(X)
        scores = self.find_best(z).scores
        outputs = self.decoder.decode(self.model.basis_, z, self.known).outputs
        return Answers(outputs, calibration.find_confidence(z, scores), calibration.find_odds(z, scores) >= least)

    def save(self, folder: str | Path) -> None:
        """Save the model with its calibration."""
        self.model.save(folder, lambda draft: self.write(draft / FILE))

    def write(self, path: Path) -> None:
        """Write the calibration alone, to a file in the folder of the model."""
        write_values(path, {**self.calibration.state(), "pairs": self.pairs_})

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", model: DSOKR | None = None) -> Conformal:
        """Read what :meth:`save` wrote; ``model`` is the one in the folder, if already loaded."""
        made = cls(DSOKR.load(folder, device=device) if model is None else model)
        state = read_values(Path(folder) / FILE)
        try:
            made.pairs_ = dict(state.pop("pairs"))
            made.calibration_ = Calibration.restore(state)
            check_types(made.calibration_)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ModelFolderError(f"{Path(folder) / FILE} is damaged: {error}.") from error
        return made

    def calibrate_for(self, scores: Tensor) -> Calibration:  # (n, k)
        """Calibrate for another list, given its best scores for the inputs of the calibration pairs.

        Right outputs count as if they were in the list: the guarantee is for inputs whose right output is in it.
        """
        z = self.pairs_["z"].to(scores)
        own = self.score_pairs(self.pairs_["z"], self.pairs_["Y"]).to(scores)
        is_there = ((scores - own[:, None]).abs() <= 1e-9 * own.abs()[:, None]).any(dim=1)
        further = torch.where(is_there, -torch.inf, own)
        scores = torch.cat([scores, further[:, None]], dim=1).sort(dim=1, descending=True).values
        return Calibration.of(z, scores, own, own >= scores[:, 0] - 1e-9 * own.abs(), self.pairs_["groups"])

    def find_best(self, z: Tensor, k: int | None = None) -> Best:
        """The k best outputs for every row of coordinates."""
        k = k or (LISTED if self.is_list else SEARCHED)
        if self.is_list:
            ranking = self.known.top(z, k, self.decoder.scoring_rule())
            return Best([], ranking.indices, ranking.scores)
        found = self.decoder.best(self.model.basis_, z, self.known, k)
        scores = pad_sequence([each.scores for each in found], batch_first=True, padding_value=-torch.inf)
        return Best([as_outputs(each.outputs) for each in found], None, scores)

    def score_pairs(self, z: Tensor, Y: Outputs) -> Tensor:  # (n,)
        """The score of output i for row i of coordinates."""
        basis = self.model.basis_
        return score_pairs(z, basis.embed(Y), basis.diag(Y), self.decoder.scoring_rule())

    def _read_pairs(self, X: Any, Y: Any) -> tuple[Tensor, Outputs]:
        if (X is None) != (Y is None):
            raise InputError("calibrate takes inputs and outputs, or neither.")
        if X is None:
            unseen = getattr(self.model, "out_of_fold_", None)
            if unseen is None:
                raise InputError(
                    "The model has no predictions out of fold: pass pairs to calibrate on. It has them right after "
                    "fit, if its regressor is a Stack and no validation pairs were given."
                )
            return unseen
        z, Y = self.model.coefficients(X), as_outputs(Y)
        check_consistent_length(z, Y)
        seen = torch.isin(identify_inputs(X), self.model.seen_).double().mean().item()
        if seen * max(1.0, self.model.n_pairs_ / max(1, len(self.model.seen_))) > 0.5:
            raise InputError(
                "The model was trained on most of these inputs: their predictions are better than those of new ones. "
                "Calibrate on other pairs, or without any, on predictions out of fold."
            )
        return z, Y

    def _is_listed(self, Y: Outputs) -> Tensor:  # (n,) bool
        if not self.is_list:
            return torch.ones(count(Y), dtype=torch.bool)
        if not hasattr(self, "_listed"):
            self._listed = set(keys(self.known.outputs))
        return torch.tensor([key in self._listed for key in keys(Y)], dtype=torch.bool)

    def is_right(self, best: Best, Y: Any) -> Tensor:  # (n,) bool
        """Whether the best output of each input is the given one. Graphs may be numbered in other ways."""
        Y = as_outputs(Y)
        if best.indices is None and isinstance(Y, GraphBatch):
            found = GraphBatch.joined([GraphBatch.of(take(outputs, slice(1))) for outputs in best.outputs])
            apart = self.model.basis_.kernel.squared_distances(found, Y)
            return (apart <= 1e-9 * self.model.basis_.kernel.diag(Y)).cpu()
        if best.indices is not None:
            first = keys(take(self.known.outputs, best.indices[:, 0]))
        else:
            first = (next(keys(take(outputs, slice(1)))) for outputs in best.outputs)
        return torch.tensor([a == b for a, b in zip(first, keys(Y), strict=True)], dtype=torch.bool)


def write_values(path: Path, values: dict[str, Any]) -> None:
    """Write a nested value, as :func:`pack` takes it, to a file."""
    tensors: Tensors = {}
    facts = {"json": json.dumps(pack(values, "values", tensors)), "sealed": ZEROS.decode()}
    save_file({name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}, str(path), facts)
    seal(path)


def read_values(path: Path) -> dict[str, Any]:
    """Read what :func:`write_values` wrote."""
    if not path.exists():
        raise ModelFolderError(f"{path} does not exist: the model was not calibrated.")
    read_sealed(path)
    try:
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 # no dictionary
            return unpack(json.loads(file.metadata()["json"]), "values", tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFolderError(f"{path} is damaged: {error}.") from error

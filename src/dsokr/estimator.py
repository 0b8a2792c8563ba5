"""Deep Sketched Output Kernel Regression as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Generator, Tensor, nn

from dsokr import decoders, kernels, losses, regressors, sketches
from dsokr.basis import BLOCK, SketchedBasis, sketch_basis
from dsokr.compute import resolve_device
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, Ranking
from dsokr.errors import DSOKRError, InputError, ModelFolderError, check_k
from dsokr.kernels import Kernel
from dsokr.outputs import Form, Outputs, as_outputs, blocks, canonical, count, positions, take
from dsokr.regressors import Neural, Regressor, Targets, networks
from dsokr.rules import score
from dsokr.saving import pack, read_model, read_part, unpack, write_model, write_part
from dsokr.sketches import SketchSpec

PARTS = {  # parts of a model, and the modules that name what they are made of
    "kernel": (kernels,),
    "sketch": (sketches,),
    "regressor": (regressors, networks, losses, kernels, sketches),
    "decoder": (decoders,),
}
EXAMPLES = {
    "kernel": (Kernel, "kernels.Gaussian(0.1)"),
    "sketch": (SketchSpec, "sketches.SubSample(100)"),
    "decoder": (Decoder, "decoders.Candidates()"),
}
OF_INPUTS = ("n_features_in_", "feature_names_in_")  # what scikit-learn records of the columns of X
NetworkFactory = Callable[[int], nn.Module]


class DSOKR(BaseEstimator):
    """Learns to predict structured outputs: a regressor predicts coordinates in a sketched basis, a decoder the output.

    Parameters
    ----------
    kernel : k, the similarity of outputs, e.g. ``kernels.Tanimoto()``.
    sketch : how the basis is drawn from the training outputs, e.g. ``sketches.SubSample(100)``.
    regressor : what learns x -> coordinates, e.g. ``regressors.Neural(networks.MLP(), loss=..., training=...)`` or
        ``regressors.KernelRidge(kernels.Gaussian(0.1))``. A network factory alone means ``Neural(network)``.
    decoder : how coordinates become an output; by default the best of the distinct training outputs.
    dim : keep only the best ``dim`` directions of the sketch's span, by sketched kernel PCA; None keeps the whole span.
    random_state : seed of the sketch, the split and the regressor.
    device : "auto", "cpu", "cuda" or "cuda:1".

    After ``fit``: ``basis_``, ``regressor_``, ``decoder_`` (with its rule chosen), ``known_`` (the embedded candidates)
    and ``history_``.

    >>> import numpy as np
    >>> from dsokr import DSOKR, Training, kernels, networks, sketches
    >>> from dsokr.regressors import Neural
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 4))
    >>> Y = (X[:, :3] > 0).astype(int)  # label sets, as binary vectors
    >>> network = Neural(networks.MLP((32,)), training=Training(epochs=30, learning_rate=0.01))
    >>> model = DSOKR(kernels.Tanimoto(), sketches.SubSample(7), network, random_state=0)
    >>> model.fit(X[:150], Y[:150]).predict(X[150:]).shape
    (50, 3)
    """

    def __init__(
        self,
        kernel: Kernel,
        sketch: SketchSpec,
        regressor: Regressor | NetworkFactory,
        *,
        decoder: Decoder = Candidates(),  # noqa: B008 # frozen, so sharing it is harmless
        dim: int | None = None,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.kernel = kernel
        self.sketch = sketch
        self.regressor: Any = regressor
        self.decoder = decoder
        self.dim = dim
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> DSOKR:
        """Algorithm 1 of the paper.

        ``validation`` is a pair (X, Y) on which the regressor's epoch or penalty and an open decoding rule are chosen.
        Without it the regressor may hold out a share of the training pairs; their outputs still count for the basis and
        as candidates.
        """
        regressor = self._check_parts()
        X, Y, form = self._check_pairs(X, Y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator, device = Generator().manual_seed(seed), resolve_device(self.device)
        self.decoder.check_outputs(Y, form)

        # 1.a The functional last layer: a basis of the feature space, from a sketch of the outputs.
        basis = sketch_basis(self.kernel, Y, self.sketch, generator=generator, device=device)
        basis = basis if self.dim is None else basis.rotated(Y, self.dim)
        candidates, candidates_form = self.decoder.candidates(Y, form)
        known = EmbeddedOutputs(basis, candidates, form=candidates_form)

        # 1.b Regression of the coordinates.
        train, held_out = self._split(X, Y, validation, regressor.validation_fraction, generator)
        if held_out is None and regressor.monitor != "loss":
            raise InputError("A monitor needs validation pairs: pass validation=(X, Y), or hold some out.")
        valid_form = form if validation is None else canonical(validation[1])[1]
        choices = self.decoder.alternatives()
        evaluate = self._evaluation(basis, known, held_out, valid_form, regressor)
        fitted = regressor.fit(
            train[0],
            Targets(*basis.embed_with_residual(train[1])),
            None if held_out is None else (held_out[0], Targets(*basis.embed_with_residual(held_out[1]))),
            seed=seed,
            device=device,
            score=None if regressor.monitor == "loss" else lambda z: max(map(partial(evaluate, z), choices)),
        )

        # 2. Inference: validation decides what the decoder leaves open.
        if len(choices) > 1 and held_out is not None:
            choices = (max(choices, key=partial(evaluate, fitted.predict(held_out[0]))),)
        self.basis_, self.known_ = basis, known
        self.regressor_: Any = fitted
        self.decoder_, self.history_ = choices[0], fitted.history
        return self

    def coefficients(self, X: Any) -> Tensor:  # (n, p)
        """g(x), the predicted coordinates in the basis."""
        check_is_fitted(self, "regressor_")
        return self.regressor_.predict(self._check_inputs(X, reset=False))

    def scores(self, X: Any, candidates: Any = None) -> Tensor:  # (n, c)
        """The score of every candidate (default: the known outputs) for every input; larger is better."""
        z = self.coefficients(X)
        return score(z, *self._embed(candidates).coordinates(), self.decoder_.scoring_rule())

    def rank(self, X: Any, candidates: Any = None, k: int = 10) -> Ranking:
        """The k best candidates for every input, best first: positions in ``candidates`` and scores."""
        k, z = check_k(k), self.coefficients(X)
        return self._embed(candidates).top(z, k, self.decoder_.scoring_rule())

    def predict(self, X: Any) -> Any:
        """One output per input, in the form in which ``fit`` got them (an array for a table, CSR for sparse rows)."""
        z = self.coefficients(X)
        return self.decoder_.decode(self.basis_, z, self.known_).outputs

    def score(self, X: Any, Y: Any) -> float:
        """R² in feature space, 1 − Σ ‖ψ(ŷ) − ψ(y)‖² / Σ ‖ψ(y) − mean ψ‖².

        With the linear kernel it is scikit-learn's ``r2_score`` with ``multioutput="variance_weighted"``.
        """
        predicted, Y, kernel = as_outputs(self.predict(X)), as_outputs(Y), self.basis_.kernel
        unexplained, total = _squared_distances(kernel, predicted, Y).sum().item(), _total_variance(kernel, Y)
        return 1 - unexplained / total if total > 0 else float(unexplained <= 0)

    def save(self, folder: str | Path, write_further: Callable[[Path], None] = lambda draft: None) -> None:
        """Write ``config.json``, ``model.safetensors``, a model card, and ``network`` if the regressor needs files.

        Nothing is pickled. ``write_further`` may add files to the folder it is called with: all appear at once.
        """
        check_is_fitted(self, "regressor_")
        given, basis = self.get_params(deep=False), self.basis_
        tensors: dict[str, Tensor] = {}
        made = {"kernel": basis.kernel, "decoder": self.decoder_, "regressor": _as_regressor(self.regressor)}
        parts = {name: write_part((given | made)[name], *modules) for name, modules in PARTS.items()}
        config = {
            "parts": parts,
            "parameters": {
                name: given[name] for name in ("dim", "random_state") if isinstance(given[name], int | None)
            },
            "rule": getattr(self.decoder, "rule", None),  # before validation chose
            "own_candidates": getattr(self.decoder, "outputs", None) is not None,
            "form": asdict(self.known_.form),
            "history": asdict(self.history_),
            "inputs": {name: np.asarray(vars(self)[name]).tolist() for name in OF_INPUTS if hasattr(self, name)},
        }
        for name in ("anchors", "weights", "projection"):
            config[name] = pack(getattr(basis, name), name, tensors)
        config["known"] = pack(self.known_.outputs, "known", tensors)
        config["regressor"] = pack(self.regressor_.state(), "regressor", tensors)

        def write_files(draft: Path) -> None:
            (draft / "network").mkdir()
            self.regressor_.write_files(draft / "network")
            if not any((draft / "network").iterdir()):
                (draft / "network").rmdir()
            write_further(draft)

        facts = {"basis dimension p": basis.dim, "candidates": len(self.known_), **self._summarize_history()}
        write_model(Path(folder), config, tensors, facts, write_files)

    def _summarize_history(self) -> dict[str, str]:
        rows, best = self.history_.rows, self.history_.best_epoch
        kept = rows[best - 1] if rows else {}
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in kept.items() if name != "epoch")
        return {"best epoch": f"{best} of {len(rows)}: {metrics}"} if rows else {}

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", **parts: Any) -> DSOKR:
        """Read a saved model.

        ``parts`` brings what could not be written down: ``regressor=...`` or ``kernel=...`` of one's own. Other
        functions of one's own (a loss, a metric) come back as the defaults: predictions do not need them.
        """
        config, tensors = read_model(Path(folder))
        unknown = set(parts) - set(PARTS)
        if unknown:
            raise InputError(f"DSOKR.load takes {', '.join(PARTS)}. Got {sorted(unknown)[0]!r}.")
        try:
            return cls._restore(Path(folder), config, tensors, device, parts)
        except DSOKRError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "state_dict" not in str(error):
                raise  # out of memory, say
            what = f"{type(error).__name__}: {error}"
            raise ModelFolderError(
                f"{folder} is damaged, or was given parts it was not saved with ({what})."
            ) from error

    @classmethod
    def _restore(
        cls, folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], device: str, given: dict[str, Any]
    ) -> DSOKR:
        parts = {
            name: given[name] if name in given else read_part(name, config["parts"][name], *modules)
            for name, modules in PARTS.items()
        }
        model, where = cls(**parts, **config["parameters"], device=device), resolve_device(device)
        names = ("anchors", "weights", "projection", "known", "regressor")
        *basis, known, state = (unpack(config[name], name, tensors) for name in names)
        if count(basis[0]) != (basis[2] if basis[1] is None else basis[1]).shape[1]:
            raise ValueError("the anchors do not fit the projection")
        model.basis_, form = SketchedBasis(model.kernel, *basis).to(where), Form.from_json(config["form"])
        model.known_ = EmbeddedOutputs(model.basis_, known, form=form)
        model.decoder_ = model.decoder.alternatives()[0]
        if isinstance(model.decoder, Candidates) and config["own_candidates"]:
            model.decoder = replace(model.decoder, outputs=form.restore(model.known_.outputs))
        if config["rule"] is not None and "decoder" not in given:
            model.decoder = replace(model.decoder, rule=config["rule"])  # type: ignore[type-var] # it has one
        regressor = _as_regressor(model.regressor)
        model.regressor_ = regressor.restore(state, folder / "network", model.basis_.dim, where)
        model.history_ = model.regressor_.history = regressors.History(**config["history"])
        for name, value in config["inputs"].items():
            setattr(model, name, np.array(value, dtype=object) if isinstance(value, list) else value)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.non_deterministic = self.random_state is None
        return tags

    def _check_parts(self) -> Regressor:
        for name, (kind, example) in EXAMPLES.items():
            if not isinstance(getattr(self, name), kind):
                got = repr(getattr(self, name))
                raise InputError(f"{name} must be a {kind.__name__}, such as {example}. Got {got}.")
        self.decoder.check(self.kernel)
        return _as_regressor(self.regressor)

    def _check_pairs(self, X: Any, Y: Any) -> tuple[Any, Outputs, Form]:
        if Y is None:
            raise InputError("DSOKR requires y to be passed, but the target y is None.")
        X, (Y, form) = self._check_inputs(X, reset=True), canonical(Y)
        check_consistent_length(X, Y)
        if count(Y) < 2:
            raise InputError("At least two pairs are needed to learn anything. Got n_samples=1.")
        return X, Y, form

    def _check_inputs(self, X: Any, reset: bool) -> Any:
        """Arrays are checked as scikit-learn does, tensors for NaN; other collections are the regressor's affair."""
        if reset:
            for name in OF_INPUTS:
                self.__dict__.pop(name, None)
        if isinstance(X, Tensor):
            if X.is_floating_point() and not torch.isfinite(X).all():
                raise InputError("X must be finite. Got NaN or inf.")
            return validate_data(self, X, reset=reset, skip_check_array=True) if X.ndim > 1 else X
        if _is_raw(X):
            if not count(X):
                raise InputError("X is empty: at least one input is needed.")
            return X.tocsr() if sp.issparse(X) else list(X)
        return validate_data(self, X, reset=reset, allow_nd=True, dtype="numeric")

    def _split(
        self, X: Any, Y: Outputs, validation: Any, fraction: float, generator: Generator
    ) -> tuple[tuple[Any, Outputs], tuple[Any, Outputs] | None]:
        """The pairs to train on and those to validate on, if any."""
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 2:
                raise InputError(f"validation must be a pair (X, Y). Got {type(validation).__name__}.")
            X_val, Y_val = self._check_inputs(validation[0], reset=False), as_outputs(validation[1], "validation Y")
            check_consistent_length(X_val, Y_val)
            return (X, Y), (X_val, Y_val)
        held_out = round(fraction * count(Y))
        if held_out == 0:
            return (X, Y), None
        if held_out == count(Y):
            raise InputError(f"A validation fraction of {fraction} leaves none of the {held_out} pairs to train on.")
        order = torch.randperm(count(Y), generator=generator)
        train, valid = order[held_out:], order[:held_out]
        return (take(X, train), take(Y, train)), (take(X, valid), take(Y, valid))

    def _evaluation(
        self, basis: SketchedBasis, known: EmbeddedOutputs, held_out: Any, form: Form, regressor: Regressor
    ) -> Callable[[Tensor, Decoder], float]:
        """How good coordinates of the validation inputs are with a decoder, by the regressor's monitor."""
        Y = None if held_out is None else held_out[1]
        if regressor.monitor == "mrr":
            truth = positions(Y, known.outputs)
            return lambda z, decoder: known.ranks(z, truth, decoder.scoring_rule()).reciprocal().mean().item()

        def evaluate(z: Tensor, decoder: Decoder) -> float:
            predicted = decoder.decode(basis, z, known).outputs
            if callable(regressor.monitor):
                return float(regressor.monitor(predicted, form.restore(Y)))
            return -_squared_distances(self.kernel, as_outputs(predicted), Y).mean().item()

        return evaluate

    def _embed(self, candidates: Any) -> EmbeddedOutputs:
        return self.known_ if candidates is None else EmbeddedOutputs(self.basis_, candidates, keep=False)


def _as_regressor(regressor: Any) -> Regressor:
    return regressor if isinstance(regressor, Regressor) else Neural(regressor)


def _is_raw(X: Any) -> bool:
    """Whether inputs are not a dense table of numbers: sparse rows, strings, objects, rows of different lengths."""
    if sp.issparse(X):
        return True
    if hasattr(X, "dtype") and getattr(X, "ndim", None) == 1:  # an array, or a column of a table
        return getattr(X.dtype, "kind", "O") in "OUST"  # objects, and texts in three forms
    if not isinstance(X, list | tuple):
        return not hasattr(X, "__array__") and hasattr(X, "__len__") and not isinstance(X, str | bytes | dict)
    if not len(X) or not isinstance(X[0], int | float | np.ndarray | list | tuple):
        return True
    return len({len(x) for x in X if isinstance(x, list | tuple) or (isinstance(x, np.ndarray) and x.ndim)}) > 1


def _squared_distances(kernel: Kernel, a: Outputs, b: Outputs) -> Tensor:  # (n,)
    """‖ψ(a_i) − ψ(b_i)‖²."""
    return kernel.diag(a) - 2 * kernel.paired(a, b) + kernel.diag(b)


def _total_variance(kernel: Kernel, ys: Outputs) -> float:
    """Σ_i ‖ψ(y_i) − mean ψ‖² = Σ_i k(y_i, y_i) − (1/n) Σ_ij k(y_i, y_j)."""
    total = kernel.against(ys, torch.ones(1, count(ys), dtype=torch.float64))
    return sum((kernel.diag(block).sum() - total(block).sum() / count(ys)).item() for _, block in blocks(ys, BLOCK))

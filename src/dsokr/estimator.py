"""Deep Sketched Output Kernel Regression as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Generator, Tensor, nn

from dsokr.basis import BLOCK, SketchedBasis, embedded_scores, sketch_basis
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, Ranking
from dsokr.compute import resolve_device, seeded
from dsokr.errors import DSOKRError, InputError, ModelFolderError, require_k
from dsokr.saving import (
    NOT_WRITTEN,
    construct,
    describe,
    is_unwritten,
    pack_outputs,
    read_model,
    unpack_outputs,
    write_model,
)
from dsokr.kernels import Kernel
from dsokr.losses import Loss, Squared, as_loss
from dsokr.regressors.networks import NetworkFactory, Restores, Standardized, built, keep, outputs_of, prepared
from dsokr.outputs import Outputs, as_outputs, blocks, count, positions, take
from dsokr.sketches import SketchSpec
from dsokr.regressors.training import History, Pairs, Training, standardized, train

EXAMPLES = {
    "kernel": "kernels.Gaussian(0.1)",
    "sketch": "sketches.SubSample(100)",
    "decoder": "decoders.Candidates()",
    "training": "Training(epochs=50)",
}


class DSOKR(BaseEstimator):
    """Learns to predict structured outputs: a network predicts coordinates in a sketched basis, a decoder the output.

    Parameters
    ----------
    kernel : k, the similarity of outputs, e.g. ``kernels.Tanimoto()``.
    sketch : how the basis is drawn from the training outputs, e.g. ``sketches.SubSample(100)``.
    network : a factory from p, the dimension of the basis, to a torch module, e.g. ``networks.MLP(hidden=(512,))``.
    loss : a ``losses.Loss``, or any non-decreasing function of the squared distance in feature space.
    decoder : how coefficients become an output; by default the best of the distinct training outputs.
    training : epochs, batch size, learning rate, early stopping and so on.
    dim : keep only the best ``dim`` directions of the sketch's span, by sketched kernel PCA; None keeps the whole span.
    random_state : seed of the sketch, the weights, the split and the batches.
    device : "auto", "cpu", "cuda" or "cuda:1".

    After ``fit``: ``basis_``, ``network_``, ``decoder_`` (its rule settled), ``known_`` (the embedded candidates) and
    ``history_``.

    >>> import numpy as np
    >>> from dsokr import DSOKR, Training, kernels, networks, sketches
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 4))
    >>> Y = (X[:, :3] > 0).astype(int)  # label sets, as binary vectors
    >>> model = DSOKR(kernels.Tanimoto(), sketches.SubSample(7), networks.MLP((32,)), random_state=0,
    ...               training=Training(epochs=30, learning_rate=0.01))
    >>> model.fit(X[:150], Y[:150]).predict(X[150:]).shape
    (50, 3)
    """

    def __init__(
        self,
        kernel: Kernel,
        sketch: SketchSpec,
        network: NetworkFactory,
        *,
        loss: Loss | Callable[[Tensor], Tensor] = Squared(),  # noqa: B008 # frozen, so sharing it is harmless
        decoder: Decoder = Candidates(),  # noqa: B008
        training: Training = Training(),  # noqa: B008
        dim: int | None = None,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.kernel = kernel
        self.sketch = sketch
        self.network = network
        self.loss = loss
        self.decoder = decoder
        self.training = training
        self.dim = dim
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, Y: Outputs, validation: tuple[Any, Outputs] | None = None) -> DSOKR:
        """Algorithm 1 of the paper.

        ``validation`` is a pair (X, Y) on which the epoch to keep and an open decoding rule are chosen. Without it a
        share of the training pairs is held out for that (``Training.validation_fraction``); their outputs still count
        for the basis and as candidates.
        """
        self._check_parts()
        X, Y = self._check_pairs(X, Y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator, device, loss = Generator().manual_seed(seed), resolve_device(self.device), as_loss(self.loss)

        # 1.a The functional last layer: a basis of the feature space, from a sketch of the outputs.
        basis = sketch_basis(self.kernel, Y, self.sketch, generator=generator, device=device)
        basis = basis if self.dim is None else basis.rotated(Y, self.dim)
        known = EmbeddedOutputs(basis, self.decoder.known(Y))

        # 1.b The input network: regression of the coordinates.
        train_on, validate_on = self._split(X, Y, validation, generator)
        network = built(self.network, basis.dim, X, seed)
        pairs = self._pairs(basis, network, *train_on)
        network = standardized(network, pairs, self.training)
        score = partial(self._decoded_score, basis, known, *self._truth(known, validate_on))
        history = train(
            network,
            pairs,
            None if validate_on is None else self._pairs(basis, network, *validate_on),
            loss,
            self.training,
            seed=seed,
            device=device,
            evaluate=None if self.training.monitor == "loss" else self._best_score(score),
        )

        # 2. Inference: what the decoder leaves open is settled on the validation pairs.
        choices = self.decoder.alternatives()
        if len(choices) > 1 and validate_on is not None:
            z = outputs_of(network, prepared(network, validate_on[0]))
            choices = (max(choices, key=partial(score, z)),)
        self.basis_, self.known_, self.network_ = basis, known, network
        self.decoder_, self.history_ = choices[0], history
        return self

    def coefficients(self, X: Any) -> Tensor:  # (n, p)
        """g(x), the predicted coordinates in the basis."""
        check_is_fitted(self, "network_")
        return outputs_of(self.network_, prepared(self.network_, self._check_inputs(X, reset=False)))

    def scores(self, X: Any, candidates: Outputs | None = None) -> Tensor:  # (n, c)
        """The score of every candidate (default: those known from training) for every input; larger is better."""
        z = self.coefficients(X)
        return embedded_scores(z, *self._embedded(candidates).coordinates(), self.decoder_.scoring_rule())

    def rank(self, X: Any, candidates: Outputs | None = None, k: int = 10) -> Ranking:
        """The k best candidates for every input, best first: positions in ``candidates`` and scores."""
        k, z = require_k(k), self.coefficients(X)
        return self._embedded(candidates).top(z, k, self.decoder_.scoring_rule())

    def predict(self, X: Any) -> Outputs:
        """One output per input, in the form in which ``fit`` got them (an array for a table, CSR for sparse rows)."""
        z = self.coefficients(X)
        return self.decoder_.decode(self.basis_, z, self.known_).outputs

    def score(self, X: Any, Y: Outputs) -> float:
        """R² in feature space, 1 − Σ ‖ψ(ŷ) − ψ(y)‖² / Σ ‖ψ(y) − mean ψ‖².

        With the linear kernel it is scikit-learn's ``r2_score`` with ``multioutput="variance_weighted"``.
        """
        Y = as_outputs(Y)
        predicted = self.predict(X)
        kernel = self.basis_.kernel
        unexplained = _distances(kernel, predicted, Y).sum().item()
        total = _scatter(kernel, Y)
        if total <= 0:
            return float(unexplained <= 0)
        return 1 - unexplained / total

    def save(self, folder: str | Path, further: Callable[[Path], None] = lambda draft: None) -> None:
        """Write ``config.json``, ``model.safetensors``, a model card, and ``network`` if the network needs a folder.

        Nothing is pickled. ``further`` may write more files to the folder it is called with: all appear at once.
        """
        check_is_fitted(self, "network_")
        tensors = {f"network.{name}": weight for name, weight in self.network_.state_dict().items()}
        tensors["basis.projection"] = self.basis_.projection
        if self.basis_.weights is not None:
            tensors["basis.weights"] = self.basis_.weights
        parameters = self.get_params(deep=False) | {"kernel": self.basis_.kernel}  # the one it was fitted with
        config = {
            "parameters": {name: describe(value) for name, value in parameters.items()},
            "decoder": describe(self.decoder_),
            "own_candidates": getattr(self.decoder, "outputs", None) is not None,
            "anchors": pack_outputs(self.basis_.anchors, "anchors", tensors),
            "known": pack_outputs(self.known_.outputs, "known", tensors),
            "history": {"rows": self.history_.rows, "best_epoch": self.history_.best_epoch},
            "n_features_in": getattr(self, "n_features_in_", None),
            "feature_names_in": getattr(self, "feature_names_in_", np.array([])).tolist(),
        }

        def beside(draft: Path) -> None:
            keep(self.network_, draft / "network")
            further(draft)

        write_model(Path(folder), config, tensors, model_card(self), beside)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", **parts: Any) -> DSOKR:
        """Read a saved model.

        ``parts`` brings what could not be written down: ``network=...`` or ``kernel=...`` of one's own. Other functions
        of one's own (a loss, a metric) come back as the defaults: predictions do not need them.
        """
        config, tensors = read_model(Path(folder))
        try:
            return cls._restored(Path(folder), config, tensors, device, parts)
        except DSOKRError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _misfit(folder, error) from error

    @classmethod
    def _restored(
        cls, folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], device: str, given: dict[str, Any]
    ) -> DSOKR:
        model = cls(**_parameters(config["parameters"] | {"device": device}, given))
        where = resolve_device(device)
        anchors = unpack_outputs(config["anchors"], "anchors", tensors)
        basis = SketchedBasis(model.kernel, anchors, tensors.get("basis.weights"), tensors["basis.projection"])
        basis = basis.to(where)
        known = EmbeddedOutputs(basis, unpack_outputs(config["known"], "known", tensors))
        decoder = given["decoder"].alternatives()[0] if "decoder" in given else construct(config["decoder"])
        if config["own_candidates"]:
            model.decoder = replace(model.decoder, outputs=known.outputs)  # type: ignore[type-var] # Candidates
        factory, kept = model.network, folder / "network"
        if kept.is_dir() and "network" not in given and isinstance(factory, Restores):
            factory = factory.kept(kept)
        with seeded(0):  # the weights drawn here are replaced at once
            network = Standardized.plain(factory(basis.dim), basis.dim)
        weights = {name.removeprefix("network."): w for name, w in tensors.items() if name.startswith("network.")}
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise _misfit(folder, error) from error
        model.basis_, model.known_, model.network_ = basis, known, network.to(where).eval()
        model.decoder_, model.history_ = decoder, History(**config["history"])
        if config["n_features_in"] is not None:
            model.n_features_in_ = config["n_features_in"]
        if config.get("feature_names_in"):  # not in folders of earlier versions
            model.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.non_deterministic = self.random_state is None
        return tags

    def _check_parts(self) -> None:
        for name, kind in (("kernel", Kernel), ("sketch", SketchSpec), ("decoder", Decoder), ("training", Training)):
            if not isinstance(getattr(self, name), kind):
                wanted, got = kind.__name__, repr(getattr(self, name))
                raise InputError(f"{name} must be a {wanted}, such as {EXAMPLES[name]}. Got {got}.")
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise InputError(
                "network must be a function from p to a torch module, such as networks.MLP() or `lambda p: ...`: "
                f"p is known only once the basis is. Got {type(self.network).__name__}."
            )
        self.decoder.check(self.kernel)

    def _check_pairs(self, X: Any, Y: Outputs) -> tuple[Any, Outputs]:
        if Y is None:
            raise InputError("DSOKR requires y to be passed, but the target y is None.")
        X, Y = self._check_inputs(X, reset=True), as_outputs(Y)
        _check_same_length(X, Y)
        if count(Y) < 2:
            raise InputError("At least two pairs are needed to learn anything. Got n_samples=1.")
        return X, Y

    def _check_inputs(self, X: Any, reset: bool) -> Any:
        """Arrays are checked as scikit-learn does, tensors for NaN; other collections are the network's affair."""
        if reset:
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
        if isinstance(X, Tensor):
            if X.is_floating_point() and not torch.isfinite(X).all():
                raise InputError("X must be finite. Got NaN or inf.")
            if reset:
                self.n_features_in_ = X.shape[1] if X.ndim > 1 else 1
            elif X.ndim > 1 and X.shape[1] != getattr(self, "n_features_in_", None):
                expected = getattr(self, "n_features_in_", "no array")
                raise InputError(f"X has {X.shape[1]} features, but DSOKR is expecting {expected} as input.")
            return X
        if _is_raw(X):
            if not len(X):
                raise InputError("X is empty: at least one input is needed.")
            return list(X)
        if sp.issparse(X):
            raise InputError("Sparse X is not supported: networks take dense inputs. Pass X.toarray().")
        return validate_data(self, X, reset=reset, allow_nd=True, dtype="numeric")

    def _split(
        self, X: Any, Y: Outputs, validation: tuple[Any, Outputs] | None, generator: Generator
    ) -> tuple[Any, Any]:
        """The pairs to train on and those to validate on, or None."""
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 2:
                raise InputError(f"validation must be a pair (X, Y). Got {type(validation).__name__}.")
            X_val, Y_val = self._check_inputs(validation[0], reset=False), as_outputs(validation[1], "validation Y")
            _check_same_length(X_val, Y_val, "validation ")
            return (X, Y), (X_val, Y_val)
        held_out = round(self.training.validation_fraction * count(Y))
        if held_out == 0:
            if self.training.monitor != "loss":
                raise InputError("Training.monitor needs validation pairs: pass validation=(X, Y), or hold some out.")
            return (X, Y), None
        if held_out == count(Y):
            raise InputError(f"Training.validation_fraction leaves none of the {held_out} pairs to train on.")
        order = torch.randperm(count(Y), generator=generator)
        return tuple((take(X, part), take(Y, part)) for part in (order[held_out:], order[:held_out]))  # type: ignore[return-value] # two parts

    def _pairs(self, basis: SketchedBasis, network: nn.Module, X: Any, Y: Outputs) -> Pairs:
        where = basis.device if self.training.keep_data_on_device else torch.device("cpu")
        targets, residuals = (part.float().to(where) for part in basis.embed_with_residual(Y))
        return Pairs(prepared(network, X), targets, residuals)

    def _best_score(self, score: Callable[[Tensor, Decoder], float]) -> Callable[[Tensor], float]:
        """What early stopping watches if it is a metric of decoded outputs: that of the decoder which does best."""
        return lambda z: max(score(z, decoder) for decoder in self.decoder.alternatives())

    def _decoded_score(
        self,
        basis: SketchedBasis,
        known: EmbeddedOutputs,
        Y: Outputs,
        places: Tensor | None,
        z: Tensor,
        decoder: Decoder,
    ) -> float:
        monitor = self.training.monitor
        if places is not None:
            return known.ranks(z, places, decoder.scoring_rule()).reciprocal().mean().item()
        predicted = decoder.decode(basis, z, known).outputs
        if callable(monitor):
            return float(monitor(predicted, Y))
        return -_distances(self.kernel, predicted, Y).mean().item()

    def _truth(self, known: EmbeddedOutputs, validation: Any) -> tuple[Outputs, Tensor | None]:
        """The validation outputs and, if their ranks are watched, where they stand among the candidates."""
        Y = None if validation is None else validation[1]
        return Y, positions(Y, known.outputs) if self.training.monitor == "mrr" else None

    def _embedded(self, candidates: Outputs | None) -> EmbeddedOutputs:
        return self.known_ if candidates is None else EmbeddedOutputs(self.basis_, candidates, keep=False)


def _is_raw(X: Any) -> bool:
    """Whether inputs are no table of numbers: strings, objects, rows of different lengths. Networks prepare these."""
    if hasattr(X, "dtype") and getattr(X, "ndim", None) == 1:  # an array, or a column of a table
        return getattr(X.dtype, "kind", "O") in "OUST"  # objects, and texts in three forms
    if not isinstance(X, list | tuple):
        return False
    if not len(X) or not isinstance(X[0], int | float | np.ndarray | list | tuple):
        return True
    return len({len(x) for x in X if isinstance(x, list | tuple) or (isinstance(x, np.ndarray) and x.ndim)}) > 1


def _distances(kernel: Kernel, a: Outputs, b: Outputs) -> Tensor:  # (n,)
    """Δ(a_i, b_i) = ‖ψ(a_i) − ψ(b_i)‖²."""
    return kernel.diag(a) - 2 * kernel.paired(a, b) + kernel.diag(b)


def _scatter(kernel: Kernel, ys: Outputs) -> float:
    """Σ_i ‖ψ(y_i) − mean ψ‖² = Σ_i k(y_i, y_i) − (1/n) Σ_ij k(y_i, y_j)."""
    total = kernel.against(ys, torch.ones(1, count(ys), dtype=torch.float64))
    return sum((kernel.diag(block).sum() - total(block).sum() / count(ys)).item() for _, block in blocks(ys, BLOCK))


def _parameters(described: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    unknown = set(given) - set(described)
    if unknown:
        raise InputError(f"DSOKR has no parameter {sorted(unknown)[0]!r}.")
    for name in ("kernel", "network", "sketch", "decoder"):
        if name not in described:
            raise ModelFolderError(f"config.json is incomplete: it does not name the {name}.")
        if is_unwritten(described[name]) and name not in given:
            raise ModelFolderError(
                f"The model was saved with a {name} of its author's own ({described[name][NOT_WRITTEN]}): "
                f"pass it as DSOKR.load(folder, {name}=...)."
            )
    wanted = {name: value for name, value in described.items() if name not in given and not is_unwritten(value)}
    return {name: construct(value) for name, value in wanted.items()} | given


def _misfit(folder: str | Path, error: Exception) -> ModelFolderError:
    what = f"{type(error).__name__}: {error}"
    return ModelFolderError(f"{folder} is damaged, or was given parts it was not saved with ({what}).")


def model_card(model: DSOKR) -> str:
    """A few lines on what the model is and how to use it."""
    best = model.history_.rows[model.history_.best_epoch - 1]
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in best.items() if name != "epoch")
    return f"""# A DSOKR model

| | |
|---|---|
| output kernel | `{model.kernel}` |
| sketch | `{model.sketch}` |
| basis dimension p | {model.basis_.dim} |
| network | `{model.network}` |
| loss | `{model.loss}` |
| decoder | `{model.decoder_}` |
| candidates | {len(model.known_)} |
| best epoch | {model.history_.best_epoch} of {len(model.history_.rows)}: {metrics} |

```python
from dsokr import DSOKR

model = DSOKR.load("this folder")
model.predict(X)
```
"""


def _check_same_length(X: Any, Y: Outputs, which: str = "") -> None:
    if count(X) != count(Y):
        raise InputError(f"{which}X and Y must have as many rows. Got {count(X)} inputs and {count(Y)} outputs.")

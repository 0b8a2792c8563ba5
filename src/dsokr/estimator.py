"""Deep Sketched Output Kernel Regression as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags, _safe_indexing, check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Generator, Tensor

from dsokr import decoders, kernels, losses, regressors, sketches
from dsokr.basis import SketchedBasis
from dsokr.compute import compute_once, resolve_device
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, Ranking, choose_decoder
from dsokr.decoders.pools import as_pools
from dsokr.errors import InputError, check_k, check_types
from dsokr.kernels import Kernel
from dsokr.kernels.molecules import suit_texts
from dsokr.outputs import Form, Outputs, as_outputs, canonical, count, take, with_index_of
from dsokr.regressors import Auto, Regressor, Targets, networks
from dsokr.regressors.auto import as_regressor, fit_within, prepare_reading
from dsokr.regressors.base import hold_out
from dsokr.regressors.inputs import OF_INPUTS, Reader, check_groups, check_inputs, check_weights, identify_inputs
from dsokr.regressors.networks import NetworkFactory
from dsokr.regressors.stack import format_report
from dsokr.regressors.streaming import draw_pairs
from dsokr.rules import score
from dsokr.saving import MadeOfParts, pack, read_part, restore_model, unpack, write_model, write_part
from dsokr.selection import Judge, make_basis
from dsokr.sketches import SketchSpec

PARTS = {  # parts of a model, and the modules whose classes their expressions may name
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
REPEATED, MISSED = 0.9, 0.5  # shares of distinct outputs, and of features outside the basis, that call for a hint
NUMBERS = ("dim", "random_state")  # parameters that are saved with a model
PACKED = ("anchors", "weights", "projection", "known", "seen", "regressor")  # what is saved as tensors
SEEN = 5000  # training inputs, at most, that a model remembers, to refuse calibration on them


class DSOKR(MadeOfParts):
    """Learns to predict structured outputs: a regressor predicts coordinates in a sketched basis, a decoder the output.

    Parameters
    ----------
    kernel : k, the similarity of outputs, e.g. ``kernels.Tanimoto()``.
    sketch : how the basis is drawn from the training outputs, e.g. ``sketches.SubSample(100)``; "auto" chooses how many
        of them to draw, see :func:`dsokr.selection.choose_sketch`.
    regressor : what learns x -> coordinates, e.g. ``regressors.Neural(networks.MLP(), loss=..., training=...)``,
        ``regressors.KernelRidge(kernels.Gaussian(0.1))``, or any regressor of scikit-learn. A network factory alone
        means ``Neural(network)``. "auto" stacks what suits the inputs, see :class:`dsokr.regressors.Auto`.
    decoder : how coordinates become an output. "auto" searches all outputs if the kernel has such a search (label
        sets, rankings, strings, vectors), and picks the best of the distinct training outputs otherwise.
    dim : keep only the best ``dim`` directions of the sketch's span, by sketched kernel PCA; None keeps the whole span.
    random_state : seed of the sketch, the split and the regressor.
    device : "auto", "cpu", "cuda" or "cuda:1".

    After ``fit``: ``basis_``, ``regressor_``, ``decoder_`` (with its rule chosen), ``known_`` (embedded candidates),
    ``parts_`` (the parts that were given or chosen) and ``history_``.

    >>> import numpy as np
    >>> from dsokr import DSOKR, kernels
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 4))
    >>> Y = (X[:, :3] > 0).astype(int)  # label sets, as binary vectors
    >>> model = DSOKR(kernels.Tanimoto(), random_state=0)
    >>> model.fit(X[:150], Y[:150]).predict(X[150:]).shape
    (50, 3)
    """

    def __init__(
        self,
        kernel: Kernel,
        sketch: SketchSpec | Literal["auto"] = "auto",
        regressor: Regressor | NetworkFactory | BaseEstimator | Auto | Literal["auto"] = "auto",
        *,
        decoder: Decoder | Literal["auto"] = "auto",
        dim: int | None = None,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.kernel = kernel
        self.sketch: Any = sketch
        self.regressor: Any = regressor
        self.decoder: Any = decoder
        self.dim = dim
        self.random_state = random_state
        self.device = device

    def fit(
        self, X: Any, y: Any = None, validation: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> DSOKR:
        """Algorithm 1 of the paper.

        ``validation`` is a pair (X, Y) by which all open choices are made: the epoch or penalty of the regressor, the
        weights of a stack, the decoding rule. Without it, a stack uses predictions out of fold, and other regressors
        may hold out a share of the training pairs; their outputs still count for the basis and as candidates.
        ``sample_weight`` has a number for every pair: how often it counts. ``groups`` has a value for every pair, say
        the molecule that was measured: pairs of one group stay on one side of these splits. Outputs may be SMILES where
        the kernel is on graphs or fingerprints. ``X`` may be a :class:`~dsokr.regressors.Stream` of pairs.
        """
        self._check_parts()
        auto = as_regressor(self.regressor)
        if isinstance(auto, Auto) and auto.budget is not None:
            return self._fit_within(auto, X, y, validation, sample_weight, groups)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        drawn = draw_pairs(X, y, auto, seed, validation, sample_weight, groups)
        X, Y, form = self._check_pairs(drawn.X, drawn.Y)
        weights, groups = check_weights(sample_weight, Y), check_groups(groups, count(Y))
        generator, device = Generator().manual_seed(seed), resolve_device(self.device)
        kernel = suit_texts(self.kernel, Y)
        decoder: Decoder = choose_decoder(kernel, Y, form) if self.decoder == "auto" else self.decoder
        decoder.check(kernel)
        decoder.check_outputs(Y, form)
        candidates, candidates_form = decoder.candidates(Y, form)
        is_list = isinstance(decoder, Candidates) and count(candidates) > REPEATED * count(Y)
        regressor, self.reader_ = prepare_reading(auto, X, ranks=is_list)

        # 1.a The functional last layer: a basis of the feature space, from a sketch of the outputs.
        sketch, basis, state = compute_once(lambda: make_basis(kernel, Y, self.sketch, self.dim, generator, device))
        basis, generator = basis.to(device), generator.set_state(state)
        known = EmbeddedOutputs(basis, candidates, form=form.matching(candidates_form, "candidates"))

        # 1.b Regression of the coordinates.
        targets = Targets(*basis.embed_with_residual(Y), weights, groups)
        pairs = self.reader_.read(X), Y, targets
        train, held_out, valid_form = self._split(pairs, form, validation, regressor.validation_fraction, generator)
        if held_out is None and regressor.monitor != "loss":
            raise InputError("A monitor needs validation pairs: pass validation=(X, Y), or hold some out.")
        choices, judge = decoder.alternatives(), Judge(known, valid_form, regressor.monitor)
        fitted = regressor.fit(
            train[0],
            train[1],
            None if held_out is None else (held_out[0], Targets(*basis.embed_with_residual(held_out[1]))),
            seed=seed,
            device=device,
            score=partial(judge.rate_best, choices, held_out[1]) if held_out and regressor.monitor != "loss" else None,
            **drawn.embedded(self._read_inputs, form, basis.embed_with_residual),
        )

        # 2. Inference: held-out pairs decide what is left open.
        fitted, decoder = judge.decide(fitted, choices, held_out, Y)
        self.basis_, self.known_, self.decoder_ = basis, known, decoder
        self.regressor_: Any = fitted.settled()
        self.parts_ = {"kernel": kernel, "sketch": sketch, "regressor": regressor, "decoder": decoder}
        self.history_, self.n_pairs_ = fitted.history, drawn.total or count(Y)
        self.seen_, unseen = identify_inputs(X, SEEN), fitted.out_of_fold()
        self.out_of_fold_ = None if unseen is None else (unseen[1], take(Y, unseen[0]))
        self.missed_ = (targets.residuals.sum() / basis.diag(Y).sum()).item()
        return self

    def _fit_within(self, auto: Auto, X: Any, y: Any, validation: Any, *of_pairs: Any) -> DSOKR:
        X, Y, _ = self._check_pairs(X, y)

        def fit(rows: np.ndarray, regressor: Auto) -> DSOKR:
            some = (_safe_indexing(part, rows) for part in (X, y))
            further = (None if part is None else np.asarray(part)[rows] for part in of_pairs)
            return clone(self).set_params(regressor=regressor).fit(*some, validation, *further)

        model = fit_within(auto, count(Y), fit, lambda model: auto.wants_network(X, model.reader_.encoder))
        self.__dict__ |= {name: value for name, value in vars(model).items() if name.endswith("_")}
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> DSOKR:
        """Learn from further pairs, where the regressor can; the first call is ``fit``.

        The basis, the encoding of the inputs, the decoder and ``history_`` stay. A network is trained for one epoch on
        the new pairs alone; a regressor of scikit-learn needs a ``partial_fit`` of its own. New outputs become
        candidates, unless the decoder brings its own.
        """
        if not hasattr(self, "regressor_"):
            return self.fit(X, y, sample_weight=sample_weight)
        X, (Y, form) = self._check_inputs(X), self._read_outputs(y, "Y")
        check_consistent_length(X, Y)
        self.decoder_.check_outputs(Y, form)
        targets = Targets(*self.basis_.embed_with_residual(Y), check_weights(sample_weight, Y))
        parts: dict[str, Any] = self.parts_
        known = self.known_.extended(*parts["decoder"].candidates(Y, form))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) + self.n_pairs_
        self.regressor_ = parts["regressor"].update(
            self.regressor_, self.reader_.read(X), targets, seed=seed, device=resolve_device(self.device)
        )
        self.known_, self.n_pairs_ = known, self.n_pairs_ + count(Y)
        missed = (targets.residuals.sum() / self.basis_.diag(Y).sum()).item()
        self.missed_ += (missed - self.missed_) * count(Y) / self.n_pairs_
        return self

    def coefficients(self, X: Any) -> Tensor:  # (n, p)
        """g(x), the predicted coordinates in the basis."""
        check_is_fitted(self, "regressor_")
        return self.regressor_.predict(self._read_inputs(X))

    def scores(self, X: Any, candidates: Any = None) -> Tensor:  # (n, c)
        """The score of every candidate (default: the known outputs) for every input; larger is better."""
        return score(self.coefficients(X), *self._embed(candidates).coordinates(), self.decoder_.scoring_rule())

    def rank(self, X: Any, candidates: Any = None, k: int = 10, allowed: Any = None) -> Ranking:
        """The k best candidates for every input, best first: positions in ``candidates`` and scores.

        ``allowed`` says which candidates each input may have: positions for every input, a mask (n, c), sparse or not,
        or a function of an input's number that gives positions. Where these are fewer than k, the rest has position −1
        and score −∞.
        """
        k, z, known, rule = check_k(k), self.coefficients(X), self._embed(candidates), self.decoder_.scoring_rule()
        if allowed is None:
            return known.top(z, k, rule)
        return known.top_of(z, as_pools(allowed, len(z), len(known)), k, rule)

    def predict(self, X: Any) -> Any:
        """One output per input, in the form in which ``fit`` got them: an array, CSR for sparse rows, a data frame."""
        z = self.coefficients(X)
        return with_index_of(X, self.decoder_.decode(self.basis_, z, self.known_).outputs)

    def score(self, X: Any, y: Any) -> float:
        """R² in feature space, 1 − Σ ‖ψ(ŷ) − ψ(y)‖² / Σ ‖ψ(y) − mean ψ‖².

        With the linear kernel it is scikit-learn's ``r2_score`` with ``multioutput="variance_weighted"``.
        """
        predicted, Y, kernel = as_outputs(self.predict(X)), self._read_outputs(y, "Y")[0], self.basis_.kernel
        unexplained, total = kernel.squared_distances(predicted, Y).sum().item(), kernel.variance(Y)
        return 1 - unexplained / total if total > 0 else float(unexplained <= 0)

    def report(self) -> str:
        """A table of what was tried, how well each does on pairs that it was not fitted to, and what was chosen."""
        check_is_fitted(self, "regressor_")
        n, p = count(self.basis_.anchors), self.basis_.dim
        pairs = f"learned    from {self.n_pairs_} pairs"
        basis = f"basis      {p} coordinates from {n} outputs; they leave out {self.missed_:.1%} of the outputs"
        decoder = f"decoder    {self.decoder_}, {len(self.known_)} known outputs"
        hints = (f"hint       {hint}" for hint in self._list_hints())
        return "\n".join([pairs, basis, decoder, *format_report(self.regressor_.report()), *hints])

    def save(self, folder: str | Path, write_further: Callable[[Path], None] = lambda draft: None) -> None:
        """Write ``config.json``, ``model.safetensors``, a model card, and ``network`` if the regressor needs files.

        Nothing is pickled. ``write_further`` may add files to the folder it is called with: all appear at once.
        """
        check_is_fitted(self, "regressor_")
        basis, numbers = self.basis_, {name: getattr(self, name) for name in NUMBERS}
        config = {
            "parts": {name: write_part(self.parts_[name], *modules) for name, modules in PARTS.items()},
            "parameters": {name: number for name, number in numbers.items() if isinstance(number, int | None)},
            "rule": getattr(self.decoder, "rule", None),  # before validation chose
            "own_candidates": getattr(self.decoder, "outputs", None) is not None,
            "form": asdict(self.known_.form),
            "history": asdict(self.history_),
            "pairs": self.n_pairs_,
            "missed": self.missed_,
            "reader": self.reader_.state(),
            "inputs": {name: np.asarray(vars(self)[name]).tolist() for name in OF_INPUTS if hasattr(self, name)},
        }
        tensors: dict[str, Tensor] = {}
        of_basis = basis.anchors, basis.weights, basis.projection
        values = (*of_basis, self.known_.outputs, self.seen_, self.regressor_.state())
        config |= {name: pack(value, name, tensors) for name, value in zip(PACKED, values, strict=True)}

        def write_files(draft: Path) -> None:
            self.regressor_.write_folder(draft / "network")
            write_further(draft)

        facts = {"basis dimension p": basis.dim, "candidates": len(self.known_), **self.history_.summarize()}
        write_model(Path(folder), config, tensors, facts, write_files)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", **parts: Any) -> DSOKR:
        """Read a saved model.

        Pass parts of your own that could not be written down, as ``regressor=...`` or ``kernel=...``. Other functions
        of your own (a loss, a metric) are replaced by the defaults: predictions do not need them.
        """
        if unknown := set(parts) - set(PARTS):
            raise InputError(f"DSOKR.load takes {', '.join(PARTS)}. Got {sorted(unknown)[0]!r}.")
        return restore_model(Path(folder), lambda *read: cls._restore(Path(folder), device, parts, *read))

    @classmethod
    def _restore(
        cls, folder: Path, device: str, given: dict[str, Any], config: dict[str, Any], tensors: dict[str, Tensor]
    ) -> DSOKR:
        parts = {
            name: given[name] if name in given else read_part(name, config["parts"][name], *modules)
            for name, modules in PARTS.items()
        }
        model, where = cls(**parts, **config["parameters"], device=device), resolve_device(device)
        *basis, known, model.seen_, state = (unpack(config[name], name, tensors) for name in PACKED)
        known, form = as_outputs(known), Form.from_json(config["form"])
        has_form = count(replace(form, frame=None).restore(take(known, slice(1)))) == 1
        if not has_form or count(basis[0]) != (basis[2] if basis[1] is None else basis[1]).shape[1]:
            raise ValueError("the anchors do not fit the projection, or the outputs their form")
        model.basis_ = SketchedBasis(model.kernel, as_outputs(basis[0]), *basis[1:]).to(where)
        if has_own := getattr(model.decoder, "outputs", None) is not None:  # given to load
            known, form = model.decoder.candidates(known, form)
        model.known_ = EmbeddedOutputs(model.basis_, known, form=form)
        model.decoder_ = model.decoder.alternatives()[0]
        if isinstance(model.decoder, Candidates) and config["own_candidates"] and not has_own:
            model.decoder = replace(model.decoder, outputs=form.restore(model.known_.outputs))
        if config["rule"] is not None and "decoder" not in given:
            model.decoder = replace(model.decoder, rule=config["rule"])
        regressor: Any = as_regressor(model.regressor)  # the one that was chosen, if that was left open
        model.n_pairs_, model.missed_ = config["pairs"], config["missed"]
        model.reader_ = Reader.restore(config["reader"])
        model.parts_ = {name: getattr(model, name) for name in PARTS} | {"regressor": regressor}
        model.regressor_ = regressor.restore(state, folder / "network", model.basis_.dim, where)
        model.history_ = regressors.History(**config["history"])
        for part in (model.basis_, form, model.reader_, model.history_, model.regressor_):
            check_types(part)
        for name in set(config["inputs"]) & set(OF_INPUTS):
            value = config["inputs"][name]
            setattr(model, name, int(value) if name == "n_features_in_" else np.array(list(value), dtype=object))
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.non_deterministic = self.random_state is None
        tags.input_tags.allow_nan = self._reads_tables()
        tags.input_tags.sparse = self._reads_tables()
        return tags

    def _list_hints(self) -> list[str]:
        """List what usually costs accuracy, with the remedy."""
        training, hints = getattr(self.parts_["regressor"], "training", None), []
        if training is not None and training.patience and self.history_.best_epoch == training.epochs:
            hints.append(f"Training was still improving after {training.epochs} epochs: allow more.")
        is_own = getattr(self.decoder, "outputs", None) is not None
        if isinstance(self.decoder_, Candidates) and not is_own and len(self.known_) > REPEATED * self.n_pairs_:
            hints.append("Outputs hardly repeat, and predictions are picked from them: use Candidates(outputs=...).")
        if self.missed_ > MISSED:
            hints.append("The basis misses much of the outputs: use a larger sketch.")
        return hints

    def _check_parts(self) -> None:
        for name, (kind, example) in EXAMPLES.items():
            part = getattr(self, name)
            if not isinstance(part, kind) and (part != "auto" or name == "kernel"):
                raise InputError(f"{name} must be a {kind.__name__}, such as {example}. Got {part!r}.")

    def _check_pairs(self, X: Any, Y: Any) -> tuple[Any, Outputs, Form]:
        if Y is None:
            raise InputError("DSOKR requires y to be passed, but the target y is None.")
        X, (Y, form) = self._check_inputs(X, reset=True), canonical(Y)
        check_consistent_length(X, Y)
        if count(Y) < 2:
            raise InputError("At least two pairs are needed to learn anything. Got n_samples=1.")
        return X, Y, form

    def _check_inputs(self, X: Any, reset: bool = False) -> Any:
        return check_inputs(self, X, reset=reset, allow_missing=self._reads_tables())

    def _read_inputs(self, X: Any) -> Any:
        return self.reader_.read(self._check_inputs(X))

    def _reads_tables(self) -> bool:
        return getattr(as_regressor(self.regressor), "reads", "numbers") == "numbers"

    def _split(
        self, pairs: tuple[Any, Outputs, Targets], form: Form, validation: Any, fraction: float, generator: Generator
    ) -> tuple[tuple[Any, Targets], tuple[Any, Outputs] | None, Form]:
        """Return inputs and targets to train on, inputs and outputs to validate on, if any, and the form of these."""
        X, Y, targets = pairs
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 2:
                raise InputError(f"validation must be a pair (X, Y). Got {type(validation).__name__}.")
            X_val, (Y_val, own_form) = self._check_inputs(validation[0]), canonical(validation[1], "validation Y")
            check_consistent_length(X_val, Y_val)
            return (X, targets), (self.reader_.read(X_val), Y_val), form.matching(own_form, "validation Y")
        train, valid = hold_out(count(Y), fraction, generator, targets.groups)
        if not len(valid):
            return (X, targets), None, form
        return (take(X, train), targets.take(train)), (take(X, valid), take(Y, valid)), form

    def _embed(self, candidates: Any) -> EmbeddedOutputs:
        if candidates is None:
            return self.known_
        outputs, form = self._read_outputs(candidates, "candidates")
        return EmbeddedOutputs(self.basis_, outputs, keep=False, form=form)

    def _read_outputs(self, ys: Any, name: str) -> tuple[Outputs, Form]:
        outputs, form = canonical(ys, name)
        return outputs, self.known_.form.matching(form, name)

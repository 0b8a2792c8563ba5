"""The tasks of the study of guarantees: a model each, and the scores of pairs that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

from dsokr import DSOKR, Conformal, decoders, kernels
from dsokr.conformal import LISTED, SEARCHED
from dsokr.decoders import Candidates, EmbeddedOutputs
from dsokr.files import replace_file
from dsokr.outputs import as_outputs, distinct
from dsokr.regressors import KernelRidge, Neural, Training
from dsokr.regressors.networks import TextEncoder, WordBag
from dsokr.sketches import SubSample
from studies import smi2mol_models, strings
from studies.chebi20_models import RANKED, SMALL, find_encoder
from studies.data.chebi20 import ChEBI20, describe_molecules, load_chebi20
from studies.data.label_ranking import LabelRanking, generate, load_label_ranking
from studies.data.massbank import load_massbank
from studies.data.multilabel import load_multilabel
from studies.data.ocr_letters import WrittenWords, load_ocr_letters
from studies.data.smi2mol import SMI2Mol, load_smi2mol
from studies.study import ADAMW


@dataclass(frozen=True, eq=False)
class Scored:
    """Pairs by what a model makes of them. −∞ fills up scores."""

    z: Tensor  # (n, p)
    listed: Tensor  # (n, k), scores of the best outputs, best first
    own: Tensor  # (n,), scores of the right outputs
    right: Tensor  # (n,) bool, whether the best output is the right one

    def rows(self, at: Tensor) -> Scored:
        return Scored(*(getattr(self, field.name)[at] for field in fields(self)))

    def cpu(self) -> Scored:
        return Scored(*(getattr(self, field.name).cpu() for field in fields(self)))

    def places(self) -> Tensor:  # (n,)
        """The places of right outputs among those listed, after their equals; infinite for those not listed."""
        slack = 1e-9 * torch.maximum(self.own.abs(), self.listed[:, 0].abs())
        places = (self.listed >= (self.own - slack)[:, None]).sum(dim=1).clamp(min=1).double()
        last = self.listed.where(self.listed.isfinite(), torch.inf).amin(dim=1)
        return places.where(self.own + slack >= last, torch.inf)


@dataclass(frozen=True, eq=False)
class Held:
    """The pairs held out, and others that differ, with the pairs held out that calibrate for them."""

    pairs: Scored
    best: int  # outputs that probabilities are made of
    complete: bool  # whether all outputs that can be answers are listed
    n_train: int
    shift: tuple[Tensor, Scored] | None = None

    def save(self, path: Path) -> None:
        parts = {"pairs": self.pairs} | ({} if self.shift is None else {"shifted": self.shift[1]})
        tensors = {f"{name}.{key}": value for name, part in parts.items() for key, value in vars(part).items()}
        if self.shift is not None:
            tensors["calibrating"] = self.shift[0]
        numbers = {name: torch.tensor(getattr(self, name)) for name in ("best", "complete", "n_train")}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as draft:
            save_file({name: value.contiguous() for name, value in (tensors | numbers).items()}, str(draft))

    @staticmethod
    def load(path: Path) -> Held:
        tensors = load_file(str(path))
        pairs, shifted = (
            Scored(*(tensors[f"{name}.{field.name}"] for field in fields(Scored))) if f"{name}.z" in tensors else None
            for name in ("pairs", "shifted")
        )
        shift = None if shifted is None else (tensors["calibrating"], shifted)
        assert pairs is not None
        numbers = (tensors[name].item() for name in ("best", "complete", "n_train"))
        return Held(pairs, int(next(numbers)), bool(next(numbers)), int(next(numbers)), shift)


def score(conformal: Conformal, X: Any, Y: Any, most: int) -> Scored:
    """What the model makes of pairs. All right outputs can be answers."""
    z, Y = conformal.model.coefficients(X), as_outputs(Y)
    best = conformal.find_best(z, most)
    return Scored(z, best.scores, conformal.score_pairs(z, Y), conformal.is_right(best, Y))


def concatenate(parts: list[Scored]) -> Scored:
    """All pairs, one part after the other."""
    longest = max(part.listed.shape[1] for part in parts)
    parts = [replace(p, listed=pad(p.listed, (0, longest - p.listed.shape[1]), value=-torch.inf)) for p in parts]
    return Scored(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Scored)))


@dataclass(frozen=True)
class Task:
    """A task by name; ``shift`` says how the pairs differ that calibration does not fit."""

    name: str
    data: str
    make: Callable[[Path | None], Held]
    shift: str = ""


def hold_rankings(data: LabelRanking, most: int = 1000, *regressor: Any) -> Held:
    """Rank labels. Two of five pairs are held out. The shift: inputs with noise of half their spread."""
    rng = np.random.default_rng(0)
    train, held = np.split(rng.permutation(len(data.X)), [round(0.6 * len(data.X))])
    conformal = Conformal(fit(kernels.Kemeny(), data.X[train], data.rankings[train], *regressor))
    X, Y = data.X[held], data.rankings[held]
    noisy = X + 0.5 * data.X.std(axis=0) * rng.normal(size=X.shape)
    pairs, shifted = (score(conformal, inputs, Y, most) for inputs in (X, noisy))
    return Held(pairs, SEARCHED, False, len(train), (torch.arange(len(held)), shifted))


def fit(kernel: kernels.Kernel, X: Any, Y: Any, *parts: Any, device: str = "cpu", **options: Any) -> DSOKR:
    return DSOKR(kernel, *parts, random_state=0, device=device, **options).fit(X, Y)


def hold_label_sets(folder: Path | None, n_train: int = 3000) -> Held:
    """Label documents of bibtex. Training takes some of its training documents, all others are held out."""
    data = load_multilabel("bibtex", folder)
    (X, Y), test = data.train, data.test
    conformal = Conformal(fit(kernels.Tanimoto(), X[:n_train], Y[:n_train]))
    return Held(score(conformal, *test, 200), SEARCHED, False, n_train)


def hold_words(words: WrittenWords, config: strings.StringsConfig, is_list: bool, most: int = 100) -> Held:
    """Read words by a search over all strings with as many letters, or from the list of all training strings.

    The shift: one pixel in twenty is inverted. The search meets little more than a hundred strings.
    """
    split = next(strings.split_by_fold(words))
    classifier = strings.fit_letters(config, split.train, seed=0)
    model = strings.fit_dsokr(config, config.settings[-1], split.train, classifier, config.steps, seed=0)
    rng = np.random.default_rng(0)
    test = split.test.rows(rng.permutation(len(split.test))[:2000])
    has_ink = test.X.any(axis=(2, 3), keepdims=True)
    noisy = replace(test, X=np.where(has_ink & (rng.random(test.X.shape) < 0.05), 1 - test.X, test.X))
    if is_list:
        one = Conformal(model)
        pairs, shifted = (
            score(one, torch.from_numpy(part.X), part.words.tolist(), len(one.known)) for part in (test, noisy)
        )
    else:
        pairs, shifted = (search_words(model, strings.list_words(split.train), part, most) for part in (test, noisy))
    best = LISTED if is_list else SEARCHED
    return Held(pairs, best, is_list, len(split.train), (torch.arange(len(test)), shifted))


def hold_letters(folder: Path | None, is_list: bool) -> Held:
    return hold_words(load_ocr_letters(folder), strings.FULL, is_list)


def search_words(model: DSOKR, known: list[str], words: WrittenWords, most: int) -> Scored:
    """The scores of words, ordered by length."""
    conformal, lengths, parts = Conformal(model), words.lengths(), []
    for length in np.unique(lengths).tolist():
        own = words.rows(lengths == length)
        conformal.decoder = decoders.NGram(shortest=length, longest=length)
        conformal.known = EmbeddedOutputs(model.basis_, [word for word in known if len(word) == length] or known)
        parts.append(score(conformal, torch.from_numpy(own.X), own.words.tolist(), 2 * most))
    pairs = concatenate(parts)
    return replace(pairs, listed=pairs.listed[:, :most])  # those that the search found; known words come after them


WORDS = WordBag(width=256, buckets=1 << 16, rate=10.0, parts=None)  # whole words, as in the rows
TEXT_TRAINING = replace(ADAMW, epochs=10, warmup_steps=200, validation_fraction=0.0, progress=False)


def hold_texts(
    data: ChEBI20,
    network: WordBag | TextEncoder = WORDS,
    training: Training = TEXT_TRAINING,
    size: int = 500,
    most: int = 10_000,
    device: str = "cpu",
) -> Held:
    """Find the molecule of a text among all. The shift: calibrate on all but the largest quarter of molecules."""
    molecules, rows = data.molecules, np.concatenate([data.val.rows, data.test.rows])
    regressor = Neural(network, RANKED, training)
    decoder = Candidates("cosine", outputs=distinct_rows(molecules.morgan))
    Y, parts = molecules.morgan[data.train.rows], (SubSample(size), regressor)
    conformal = Conformal(fit(kernels.Tanimoto(), data.train.texts, Y, *parts, decoder=decoder, device=device))
    pairs = score(conformal, data.val.texts + data.test.texts, molecules.morgan[rows], most).cpu()
    atoms = np.diff(molecules.atoms)[rows]
    others, large = torch.from_numpy(atoms.argsort(kind="stable")).split([n := round(0.75 * len(rows)), len(rows) - n])
    shift = others, pairs.rows(large)
    return Held(pairs, LISTED, most >= len(conformal.known), len(data.train.texts), shift)


def hold_encoded_texts(data: ChEBI20, folder: Path | None) -> Held:
    """The same by a pretrained encoder, as in the study of ChEBI-20. Best on a GPU."""
    encoder = TextEncoder(find_encoder(SMALL, folder), rate=0.6)
    training = replace(TEXT_TRAINING, epochs=16, batch_size=256, precision="bf16-mixed")
    return hold_texts(data, encoder, training, 2000, device="auto")


def distinct_rows(outputs: Any) -> Any:
    """Each fingerprint once."""
    return outputs[distinct(as_outputs(outputs)).numpy()]


def hold_spectra(folder: Path | None, size: int = 1000, inputs: int = 3000) -> Held:
    """Find the molecule of a spectrum among all. Of every molecule held out there is one spectrum, drawn at random."""
    from dsokr import chem  # RDKit is needed here only

    data = load_massbank(folder)
    morgan = chem.fingerprints(data.smiles.tolist(), radius=2)
    train = np.flatnonzero(data.parts == "train")
    others = np.random.default_rng(0).permutation(np.flatnonzero(data.parts != "train"))
    held = others[np.unique(data.molecules[others], return_index=True)[1]]
    regressor, decoder = KernelRidge(kernels.Cosine(), SubSample(inputs)), Candidates("cosine", distinct_rows(morgan))
    model = fit(kernels.Tanimoto(), data.X[train], morgan[train], SubSample(size), regressor, decoder=decoder)
    conformal = Conformal(model)
    pairs = score(conformal, data.X[held], morgan[held], len(conformal.known))
    return Held(pairs, LISTED, True, len(train))


def hold_graphs(split: SMI2Mol, most: int = 200) -> Held:
    """Find the graph of a SMILES string among all molecules, by the model of the study of SMI2Mol. Best on a GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    conformal = Conformal(smi2mol_models.fit_model(smi2mol_models.OURS, split, 0, device)[0])
    model, tried = conformal.model, smi2mol_models.OURS.decoders["GraphSearch"]
    conformal.decoder = smi2mol_models.choose_decoder(model, tried, split)[0]
    pairs = score(conformal, split.test.smiles, split.test.graphs, most).cpu()
    return Held(pairs, SEARCHED, False, len(split.train.smiles))


TASKS = (
    Task("rankings", "vowel", lambda folder: hold_rankings(load_label_ranking("vowel", folder)), "noisy inputs"),
    Task("label sets", "bibtex", hold_label_sets),
    Task("words, all strings", "OCR letters", partial(hold_letters, is_list=False), "noisy images"),
    Task("words, a list", "OCR letters", partial(hold_letters, is_list=True), "noisy images"),
    Task("texts to molecules", "ChEBI-20", lambda folder: hold_texts(load_chebi20(folder)), "larger molecules"),
    Task(
        f"texts to molecules, {SMALL}",
        "ChEBI-20",
        lambda folder: hold_encoded_texts(load_chebi20(folder), folder),
        "larger molecules",
    ),
    Task("spectra to molecules", "MassBank", hold_spectra),
    Task("SMILES to graphs", "QM9", lambda folder: hold_graphs(load_smi2mol(folder))),
)
SMALL_BAG = WordBag(32, buckets=1 << 10), replace(TEXT_TRAINING, epochs=15, batch_size=32, warmup_steps=2)
GENERATED = (
    Task("rankings", "generated", lambda _: hold_rankings(generate(400), 120, "auto", KernelRidge()), "noisy inputs"),
    Task(
        "texts to molecules",
        "generated",
        lambda _: hold_texts(describe_molecules(300, 100, 100), *SMALL_BAG, 60),
        "larger molecules",
    ),
)

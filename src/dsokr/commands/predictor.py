"""A predictor from cells to cells, and how its parts are chosen.

Options name parts as expressions; parts that they leave open are chosen to suit the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from dsokr import decoders, kernels, losses, networks, regressors, sketches
from dsokr.basis import SketchedBasis
from dsokr.commands import columns
from dsokr.commands.columns import Letters, Molecule
from dsokr.commands.kinds import Kind, OutputKind, Read
from dsokr.commands.options import FitOptions
from dsokr.commands.tables import Problems, Rows, Table, write_table
from dsokr.conformal import FILE, Conformal
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, Ranking
from dsokr.errors import InputError, ModelFolderError, check_k, suggest
from dsokr.estimator import DSOKR, REPEATED
from dsokr.files import read_whole, write_json
from dsokr.graphs import Graph
from dsokr.kernels import Kernel
from dsokr.outputs import as_outputs, canonical, concatenate, count, distinct, positions, take
from dsokr.regressors import Auto, Neural, Regressor, Stack
from dsokr.regressors.auto import HELD_OUT, suit_training
from dsokr.rules import Rule
from dsokr.saving import parse_expression, write_expression

SEARCHED_ATOMS = 12  # larger molecules are picked from a list unless a search is wanted
VALENCES = {5: 3, 6: 4, 7: 3, 8: 2, 9: 1, 14: 4, 15: 5, 16: 6, 17: 1, 35: 1, 53: 1}
OF_TRAINING = ("epochs", "batch_size", "learning_rate", "patience")  # options of networks
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
READ_BY = {  # networks by the kind of inputs that they read
    "vector": (networks.MLP, networks.SparseTransformer),
    "spectrum": (networks.SparseTransformer,),
    "text": (networks.WordBag, networks.TextEncoder),
    **dict.fromkeys(("string", "smiles"), (networks.CharTransformer,)),
    "image": (networks.CNN,),
}


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of inputs and outputs: row numbers, cells and values."""

    rows: list[int]
    inputs: list[str]
    outputs: list[str]
    X: Any
    Y: Any
    groups: list[str] | None = None  # rows of one group are on one side of all splits

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, at: Sequence[int]) -> Pairs:
        parts = (self.rows, self.inputs, self.outputs, self.X, self.Y, self.groups)
        return Pairs(*(None if part is None else take(part, at) for part in parts))  # type: ignore[arg-type] # in order


def read_column(
    rows: Rows, kind: Kind, problems: Problems, kernel: Kernel | None = None, names: Sequence[str] = ()
) -> tuple[list[str], Read]:
    """Return the cells of a column, under its own or another name, and their values; bad ones are problems."""
    cells = list(kind.locate(rows.join(names or kind.columns), rows.table.path.parent))
    read = kind.read(cells, kernel)
    for at, reason in read.bad.items():
        problems.add(rows.table, rows.numbers[at], ", ".join(kind.columns), reason)
    return cells, read


def read_pairs(
    rows: Rows, input: Kind, output: OutputKind, kernel: Kernel, problems: Problems, group: str | None = None
) -> Pairs:
    """Read the rows with a good input, and a good output that the kernel is defined for; the others are problems."""
    inputs, x = read_column(rows, input, problems)
    outputs, y = read_column(rows, output, problems, kernel)
    groups = None if group is None else list(map(str.strip, rows.cells[group]))
    ungrouped = [at for at, name in enumerate(groups or ()) if not name]
    for at in ungrouped:
        problems.add(rows.table, rows.numbers[at], group or "", "The cell is empty.")
    good = sorted({*x.good} & {*y.good} - {*ungrouped})
    if not good:
        raise rows.table.unusable(problems)
    problems.check(rows.table, len(rows.attempted))
    X, Y = (take(read.values, np.searchsorted(read.good, good)) for read in (x, y))
    groups = groups and take(groups, good)
    return Pairs(take(rows.numbers, good), take(inputs, good), take(outputs, good), X, Y, groups)


@dataclass(frozen=True, eq=False)
class Predictor:
    """From cells to cells: a :class:`dsokr.DSOKR`, the kinds of its inputs and outputs, and the outputs it knows.

    >>> from dsokr import Training, kernels, networks, sketches
    >>> from dsokr.commands.columns import Labels, Vector
    >>> from dsokr.decoders import LabelSet
    >>> from dsokr.regressors import Neural
    >>> numbers = [f"{a} {b}" for a in range(-5, 6) for b in range(-5, 6)]
    >>> labels = ["up" if int(text.split()[1]) > 0 else "left;down" for text in numbers]
    >>> network = Neural(networks.MLP((32,)), training=Training(epochs=60, batch_size=16, learning_rate=0.01))
    >>> model = DSOKR(kernels.Tanimoto(), sketches.SubSample(20), network, decoder=LabelSet(), random_state=0)
    >>> predictor = Predictor.fit(model, Vector(), Labels(), numbers, labels)
    >>> predictor.predict(["-4 5", "0 -3"])
    ['up', 'down;left']
    """

    model: DSOKR
    input: Kind
    output: OutputKind
    known: list[str] = field(default_factory=list)  # the outputs seen in fit, in the order of ``model.known_``
    facts: dict[str, Any] = field(default_factory=dict)  # options and results of the fit; JSON
    sure: Conformal | None = None  # how far to trust it, if it was calibrated

    @staticmethod
    def fit(model: DSOKR, input: Kind, output: OutputKind, inputs: Sequence[Any], outputs: Sequence[Any]) -> Predictor:
        """Adapt the kinds to cells, all of which must be good, and train the model on them."""
        input, output = input.adapt(inputs), output.adapt(outputs)
        X, Y = input.parse_all(inputs, "Input"), output.parse_all(outputs, "Output")
        pairs = Pairs(list(range(len(inputs))), list(inputs), list(outputs), X, Y)
        return Predictor(model, input, output).train(pairs)

    def train(self, pairs: Pairs, validation: Pairs | None = None, kept: Pairs | None = None) -> Predictor:
        """Train the model and return the predictor with the outputs it knows.

        A decoder over candidates gets all distinct outputs, those of the validation pairs and of others that are kept
        apart too (a list without the right answers says little about ranking), and the rule by which the right answers
        rank highest.
        """
        model, cells, ys = self.model, pairs.outputs, as_outputs(pairs.Y)
        is_listed = isinstance(model.decoder, Candidates)
        for others in (validation, kept):
            if is_listed and others is not None:
                cells, ys = [*cells, *others.outputs], concatenate(ys, as_outputs(others.Y))
        first = distinct(ys)
        if is_listed:
            model.decoder = replace(model.decoder, outputs=take(ys, first))
        held_out = None if validation is None else (validation.X, validation.Y)
        model.fit(pairs.X, pairs.Y, validation=held_out, groups=pairs.groups)
        if is_listed and validation is not None:
            z, known = model.coefficients(validation.X), model.known_
            truth = positions(as_outputs(validation.Y), known.outputs)
            choices = {choice.scoring_rule(): choice for choice in model.decoder.alternatives()}
            best = max(choices, key=lambda rule: known.ranks(z, truth, rule).reciprocal().mean())
            model.decoder_ = model.parts_["decoder"] = choices[best]  # the latter is saved
        trained = int((first < len(pairs)).sum())
        return replace(self, known=take(cells, first), facts=self.facts | {"trained": trained})

    @property
    def trained(self) -> list[str]:
        """The known outputs that were trained on, and not only held out."""
        return self.known[: self.facts.get("trained")]

    @property
    def basis(self) -> SketchedBasis:
        return self.model.basis_

    @property
    def rule(self) -> Rule:
        """How outputs are scored, as chosen in training."""
        return self.model.decoder_.scoring_rule()

    @property
    def searches(self) -> bool:
        """Whether the decoder searches all outputs, not only those of a list."""
        return not isinstance(self.model.decoder_, Candidates)

    def coefficients(self, inputs: Sequence[Any]) -> Tensor:  # (n, p)
        """g(x), the predicted coordinates. A bad input is named by its position."""
        return self.model.coefficients(self.input.parse_all(inputs, "Input"))

    def embed(self, outputs: Sequence[str]) -> tuple[Tensor, Tensor]:  # (n, p), (n,)
        """ψ̃(y) and k(y, y) of any outputs, given as cells. A bad one is named by its position."""
        return EmbeddedOutputs(self.basis, self.output.parse_all(outputs, "Output")).coordinates()

    def among(self, candidates: Sequence[str] | None) -> EmbeddedOutputs:
        """Embed candidates, given as cells, to rank them; without them, the known outputs."""
        if candidates is None:
            return self.model.known_
        return EmbeddedOutputs(self.basis, self.output.parse_all(candidates, "Candidate"), keep=False)

    def rank(
        self, inputs: Sequence[Any], candidates: Sequence[str] | None = None, k: int = 10, rule: Rule | None = None
    ) -> Ranking:
        """The k best candidates (default: the known outputs) for every input, best first: positions and scores."""
        return self.among(candidates).top(self.coefficients(inputs), check_k(k), rule or self.rule)

    def predict(self, inputs: Sequence[Any]) -> list[str]:
        """One output per input, as a cell."""
        return self.decode(self.coefficients(inputs))[0]

    def decode(self, z: Tensor) -> tuple[list[str], Tensor]:  # (n,)
        """The outputs for coordinates, as cells, and their scores."""
        if not self.searches:  # a cell as it was given: a molecule cannot be made from its fingerprint
            best = self.model.known_.top(z, 1, self.rule)
            return take(self.known, best.indices[:, 0]), best.scores[:, 0]
        found = self.model.decoder_.decode(self.basis, z, self.model.known_)
        return [self.output.format(value) for value in found.outputs], found.scores

    def save(self, folder: str | Path, write_further: Callable[[Path], None] = lambda draft: None) -> None:
        """Write what :meth:`DSOKR.save` does, ``task.json`` and ``candidates.csv``, the known outputs, all at once."""

        def write_files(draft: Path) -> None:
            kinds = {name: write_expression(kind, columns) for name, kind in self.kinds().items()}
            write_json(draft / "task.json", {**kinds, "facts": self.facts})
            write_table(draft / "candidates.csv", ["output"], ([cell] for cell in self.known))
            if self.sure is not None:
                self.sure.write(draft / FILE)
            write_further(draft)

        self.model.save(folder, write_files)

    def kinds(self) -> dict[str, Any]:
        return {"input": self.input, "output": self.output}

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Predictor:
        """Read a saved predictor."""
        folder = Path(folder)
        if not folder.is_dir():
            what = "is a file" if folder.is_file() else "does not exist"
            raise ModelFolderError(f"{folder} {what}. Name the folder that `dsokr fit` wrote, then the table.")
        if not (folder / "task.json").is_file():
            hint = " DSOKR.load reads it in Python." if (folder / "config.json").exists() else ""
            raise ModelFolderError(f"{folder} is not a model made by `dsokr fit`: task.json is missing.{hint}")
        return read_whole(folder, lambda: cls._read(folder, device))

    @classmethod
    def _read(cls, folder: Path, device: str) -> Predictor:
        model = DSOKR.load(folder, device=device)
        try:
            task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
            known = Table(folder / "candidates.csv").read(Problems(share=0)).cells["output"]
            if len(known) != len(model.known_):
                raise ValueError("candidates.csv does not list the outputs that the model knows")
            input, output = (parse_expression(task[name], columns) for name in ("input", "output"))
            sure = Conformal.load(folder, model=model) if (folder / FILE).is_file() else None
            return cls(model, input, output, known, task["facts"], sure)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelFolderError(f"{folder} is damaged: {error}.") from error


def parse_part(text: str, module: ModuleType, option: str, *others: ModuleType) -> Any:
    """Make the part that an option names, ``Gaussian(0.5)``; empty parentheses may be left out."""
    try:
        return parse_expression(f"{text}()" if text.isidentifier() else text, module, *others)
    except InputError as error:
        raise InputError(f"{option} {error}") from error


def parse_kernel(text: str, ys: Any = None) -> Kernel:
    """Make a kernel; the gamma of ``Gaussian(auto)`` is one over the median distance between the outputs."""

    def insert_gamma(match: re.Match[str]) -> str:
        gamma = 1.0 if ys is None else find_gamma(ys, power=2 if match[1] == "Gaussian" else 1)
        return f"{match[1]}({gamma!r})"

    return parse_part(re.sub(r"\b(Gaussian|Laplacian)\(auto\)", insert_gamma, text), kernels, "--kernel")


def find_gamma(ys: Any, power: int) -> float:
    """Return one over the median of the distances between some of the outputs, to that power."""
    if not isinstance(ys, np.ndarray):
        raise InputError("--kernel: auto is for vectors and labels. Write a number in its place.")
    some = ys[:1000].astype(np.float64)[np.random.default_rng(0).permutation(min(1000, len(ys)))]
    typical = float(np.median([(np.abs(a - b) ** power).sum() for a, b in pairwise(some)] or [1.0]))
    return 1 / typical if typical > 0 else 1.0


def check_options(options: FitOptions) -> None:
    """Refuse options that exclude each other, and an encoder that is neither a folder nor a name on the hub."""
    ways = "regressor", "network", "encoder"
    given = [f"--{name}" for name in ways if getattr(options, name) not in ("", "auto")]
    if len(given) > 1:
        raise InputError(f"{given[0]} and {given[1]} exclude each other: each says what reads the inputs.")
    Auto(options.budget)
    if given and options.budget is not None:
        raise InputError(f"--budget is kept by choosing what to fit. Got {given[0]} beside it.")
    if options.regressor != "auto" and wants_network(options):
        raise InputError(
            "--epochs, --batch-size, --learning-rate, --patience, --loss, --temperature and --seeds are for networks: "
            "write them into --regressor, as in Neural(MLP(), loss=..., training=Training(...))."
        )
    _choose_loss(options, ranks=True)
    name, folder = options.encoder, Path(options.encoder)
    is_name = HUB_NAME.fullmatch(name) and not folder.parent.is_dir()
    if name and not (folder / "config.json").is_file() and (folder.is_dir() or not is_name):
        raise InputError(f"{name} is neither the folder of a text encoder nor a name on the hub, organisation/model.")


def wants_network(options: FitOptions) -> bool:
    """Whether an option is about networks."""
    named = {options.network, options.loss} != {"auto"} or options.seeds > 1
    return named or any(getattr(options, name) is not None for name in (*OF_TRAINING, "temperature"))


def choose_regressor(options: FitOptions, input: Kind, n: int, ranks: bool) -> Regressor | Auto:
    """Make the regressor: an expression, a network, or what suits the inputs."""
    training = {name: value for name in OF_TRAINING if (value := getattr(options, name)) is not None}
    if options.regressor != "auto":
        return parse_part(options.regressor, regressors, "--regressor", networks, losses, kernels, sketches)
    if options.network == "auto" and not options.encoder:
        kind: Any = "auto" if input.name in ("vector", "image", "spectrum") else input.name
        is_open = options.loss == "auto" and options.temperature is None
        loss = None if is_open else _choose_loss(options, ranks)
        return Auto(options.budget, kind, training, loss=loss, seeds=options.seeds)
    network = _choose_network(options, input)
    neural = Neural(network, _choose_loss(options, ranks), suit_training(network, n, training))
    return neural if options.seeds == 1 else Stack((neural,) * options.seeds, HELD_OUT, "equal")


def _choose_loss(options: FitOptions, ranks: bool) -> losses.Objective:
    """Make the loss; a temperature, or answers that are picked from a list that hardly repeats, call for ``Ranked``."""
    loss: Any = losses.Ranked() if ranks or options.temperature is not None else losses.Squared()
    if options.loss != "auto":
        loss = parse_part(options.loss, losses, "--loss")
    if not isinstance(loss, losses.Objective):
        raise InputError(f"--loss {options.loss} is not a loss. Use one such as Huber(1.0) or Ranked().")
    if options.temperature is None:
        return loss
    if not isinstance(loss, losses.Ranked):
        raise InputError(f"--temperature is of the loss Ranked. Got --loss {options.loss}.")
    return replace(loss, temperature=options.temperature)


def _choose_network(options: FitOptions, input: Kind) -> Any:
    folder = Path(options.encoder)
    if options.encoder:
        name = str(folder.resolve()) if folder.is_dir() else options.encoder
        network: Any = networks.TextEncoder(name, rate=0.1)
    else:
        network = parse_part(options.network, networks, "--network")
    is_sparse = getattr(input, "sparse", False)
    readers = READ_BY["spectrum" if is_sparse else input.name]
    if type(network) not in readers:
        names, what = " or ".join(kind.__name__ for kind in readers), "sparse" if is_sparse else input.name
        raise InputError(f"{type(network).__name__} does not read {what} inputs. Use {names}.")
    return replace(network, longest=input.longest) if isinstance(input, Letters) else network


def choose_decoder(text: str, output: OutputKind, kernel: Kernel, ys: Any) -> Decoder:
    """Make the decoder: ``candidates`` of a list, a ``search`` of all outputs, ``auto``, or an expression."""
    if text == "candidates":
        return Candidates()
    if text not in ("auto", "search"):
        hint = suggest(text, ("candidates", "search"))
        return parse_part(text, decoders, f"--decoder takes auto, candidates, search or an expression.{hint}")
    search: Decoder | None = decoders.find_search(kernel, *canonical(ys))
    best = decoders.choose_decoder(kernel, *canonical(ys))
    if isinstance(output, Molecule) and output.as_graph:
        search = decoders.GraphSearch(_find_domain(ys))
        best = search if max(len(graph.labels) for graph in ys) <= SEARCHED_ATOMS else best
    if text == "auto":
        return best
    if search is None:
        raise InputError(f"There is no search of all outputs with the kernel {kernel}. Use --decoder candidates.")
    return search


def _find_domain(graphs: list[Graph]) -> decoders.Molecules:
    """Return the molecules of the elements that occur, no larger than the largest."""
    elements: dict[int, int] = {}
    for graph in graphs:
        for place, element in enumerate(graph.labels):
            bonds = sum(order for i, j, order in graph.edges if place in (i, j))
            elements[element] = max(elements.get(element, 1), bonds)
    valences = tuple((element, VALENCES.get(element, most)) for element, most in sorted(elements.items()))
    return decoders.Molecules(valences, max(len(graph.labels) for graph in graphs))


def make_model(options: FitOptions, input: Kind, output: OutputKind, kernel: Kernel, ys: Any) -> DSOKR:
    """Put the parts together."""
    decoder = choose_decoder(options.decoder, output, kernel, ys)
    ranks = isinstance(decoder, Candidates) and len(distinct(as_outputs(ys))) > REPEATED * count(ys)
    regressor = choose_regressor(options, input, count(ys), ranks)
    sketch: Any = "auto" if options.size == "auto" else sketches.SubSample(int(options.size))
    parts: dict[str, Any] = {"decoder": decoder, "dim": options.dim}
    return DSOKR(kernel, sketch, regressor, **parts, random_state=options.seed, device=options.device)

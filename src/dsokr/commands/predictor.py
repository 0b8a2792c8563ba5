"""A fitted model together with how its inputs and outputs are read and written."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError
from torch import Tensor

from dsokr.basis import Rule, SketchedBasis, check_rule
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, Ranking
from dsokr.errors import ModelFolderError, require_k
from dsokr.estimator import DSOKR
from dsokr.kernels import Kernel
from dsokr.regressors.networks import NetworkFactory
from dsokr.outputs import Outputs, distinct, positions, take
from dsokr.sketches import SketchSpec
from dsokr.commands import tables
from dsokr.commands.kinds import Cell, Kind, OutputKind, counted, input_kind, output_kind
from dsokr.regressors.training import Training
from dsokr.files import drafted

FORMAT = 1  # of task.json


class Pairs(NamedTuple):
    """Inputs and outputs that were read, and the outputs as cells."""

    X: Any
    Y: Outputs
    cells: list[str]

    @classmethod
    def of(cls, input: Kind, output: OutputKind, inputs: Sequence[Cell], outputs: Sequence[Cell]) -> Pairs:
        """All cells must be good."""
        X, Y = input.all_of(inputs, "Input"), output.all_of(outputs, "Output")
        return cls(X, Y, [cell_text(cell) for cell in outputs])


@dataclass(frozen=True, eq=False)
class Predictor:
    """From cells to cells: a :class:`dsokr.DSOKR`, the kinds of its inputs and outputs, and the outputs it knows.

    >>> from dsokr import Training, kernels, networks, sketches
    >>> from dsokr.decoders import LabelSet
    >>> from dsokr.commands.kinds import Labels, Vector
    >>> numbers = [f"{a} {b}" for a in range(-5, 6) for b in range(-5, 6)]
    >>> labels = ["up" if int(text.split()[1]) > 0 else "left;down" for text in numbers]
    >>> predictor = Predictor.fit(numbers, labels, input=Vector(), output=Labels(), kernel=kernels.Tanimoto(),
    ...     sketch=sketches.SubSample(20), network=networks.MLP((32,)), decoder=LabelSet(),
    ...     training=Training(epochs=60, batch_size=16, learning_rate=0.01, progress=False), seed=0)
    >>> predictor.predict(["-4 5", "0 -3"])
    ['up', 'down;left']
    """

    model: DSOKR
    input: Kind
    output: OutputKind
    known: list[str]  # the outputs seen in fit, as cells, in the order of ``model.known_``
    facts: dict[str, Any] = field(default_factory=dict)  # columns, options and results of the fit; JSON

    @classmethod
    def fit(
        cls,
        inputs: Sequence[Cell],
        outputs: Sequence[Cell],
        *,
        input: Kind,
        output: OutputKind,
        kernel: Kernel,
        sketch: SketchSpec,
        network: NetworkFactory,
        decoder: Decoder = Candidates(),  # noqa: B008 # frozen, so sharing it is harmless
        training: Training = Training(),  # noqa: B008
        validation: tuple[Sequence[Cell], Sequence[Cell]] | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> Predictor:
        """Train on pairs of cells, all of which must be good.

        Kinds that were not adapted to training cells are adapted to these. A decoder over candidates gets all distinct
        outputs, those of the validation pairs too: a list without the right answers says little about ranking.
        """
        input = input if input.is_adapted else input.adapted(inputs)
        output = output if output.is_adapted else output.adapted(outputs)
        pairs = Pairs.of(input, output, inputs, outputs)
        held_out = None if validation is None else Pairs.of(input, output, *validation)
        return cls.trained(
            pairs,
            held_out,
            input=input,
            output=output,
            kernel=kernel,
            sketch=sketch,
            network=network,
            decoder=decoder,
            training=training,
            seed=seed,
            device=device,
        )

    @classmethod
    def trained(
        cls,
        pairs: Pairs,
        validation: Pairs | None,
        *,
        input: Kind,
        output: OutputKind,
        decoder: Decoder,
        seed: int,
        device: str,
        **parts: Any,
    ) -> Predictor:
        """As :meth:`fit`, on pairs that are read already; ``parts`` are those of :class:`dsokr.DSOKR`."""
        cells, values = pairs.cells, pairs.Y
        if validation is not None and isinstance(decoder, Candidates):
            cells, values = [*cells, *validation.cells], _joined(values, validation.Y)
        first = distinct(values)
        if isinstance(decoder, Candidates):
            decoder = replace(decoder, outputs=take(values, first))
        model = DSOKR(decoder=decoder, random_state=seed, device=device, **parts)
        model.fit(pairs.X, pairs.Y, validation=None if validation is None else (validation.X, validation.Y))
        if validation is not None and isinstance(decoder, Candidates):
            model.decoder_ = _best_for_ranking(model, validation)
        return cls(model, input, output, [cells[i] for i in first.tolist()])

    @property
    def basis(self) -> SketchedBasis:
        return self.model.basis_

    @property
    def rule(self) -> Rule:
        """How outputs are scored, as settled in fit."""
        return self.model.decoder_.scoring_rule()

    @property
    def searches(self) -> bool:
        """Whether the decoder searches among all outputs there can be, not only those of a list."""
        return not isinstance(self.model.decoder_, Candidates)

    def coefficients(self, inputs: Sequence[Cell]) -> Tensor:  # (n, p)
        """g(x), the predicted coordinates. A bad input is named by its position."""
        return self.model.coefficients(self.input.all_of(inputs, "Input"))

    def embed(self, outputs: Sequence[str]) -> tuple[Tensor, Tensor]:  # (n, p), (n,)
        """ψ̃(y) and k(y, y) of any outputs, given as cells. A bad one is named by its position.

        To go on without bad ones, ``read = predictor.output.read(cells)`` first: its ``values`` are what
        ``predictor.basis.embed`` takes, ``good`` says where they stood and ``bad`` why the others are not among them.
        """
        values = self.output.all_of(outputs, "Output")
        return self.basis.embed(values), self.basis.diag(values)

    def rank(
        self, inputs: Sequence[Cell], candidates: Sequence[str] | None = None, k: int = 10, rule: Rule | None = None
    ) -> Ranking:
        """The k best candidates for every input, best first: positions in ``candidates`` and scores.

        Without candidates, of the known outputs.
        """
        k = require_k(k)
        if rule is not None:
            check_rule(rule)
        return self.among(candidates).top(self.coefficients(inputs), k, rule or self.rule)

    def among(self, candidates: Sequence[str] | None) -> EmbeddedOutputs:
        """Candidates, given as cells, that can be ranked; without them, the known outputs."""
        if candidates is None:
            return self.model.known_
        return EmbeddedOutputs(self.basis, self.output.all_of(candidates, "Candidate"), keep=False)

    def predict(self, inputs: Sequence[Cell]) -> list[str]:
        """One output per input, as a cell: what the decoder finds."""
        return self.decoded(self.coefficients(inputs))[0]

    def decoded(self, z: Tensor) -> tuple[list[str], Tensor]:  # (n,)
        """The outputs for coefficients, as cells, and their scores."""
        if isinstance(self.model.decoder_, Candidates):  # a cell as it was given, also where no value can be written
            top = self.model.known_.top(z, 1, self.rule)
            return [self.known[i] for i in top.indices[:, 0].tolist()], top.scores[:, 0]
        found = self.model.decoder_.decode(self.basis, z, self.model.known_)
        return [self.output.formatted(value) for value in found.outputs], found.scores

    def save(self, folder: str | Path) -> None:
        """Write what :meth:`DSOKR.save` does, ``task.json`` and ``candidates.csv``, the known outputs, all at once."""

        def further(draft: Path) -> None:
            tables.write(draft / "candidates.csv", ["output"], ([cell] for cell in self.known))
            self.save_facts(draft)

        try:
            self.model.save(folder, further)
        except (OSError, SafetensorError) as error:
            raise ModelFolderError(
                f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}."
            ) from error

    def save_facts(self, folder: str | Path) -> None:
        """Write ``task.json`` alone, again: what is known about the model has changed, the model has not."""
        task = {
            "format": FORMAT,
            "input": self.input.described(),
            "output": self.output.described(),
            "facts": self.facts,
        }
        with drafted(Path(folder) / "task.json") as draft:
            draft.write_text(json.dumps(task, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Predictor:
        """Read a saved predictor."""
        folder = Path(folder)
        if folder.is_file():
            raise ModelFolderError(f"{folder} is a file. The folder of the model comes first, then the table.")
        if not folder.is_dir():
            raise ModelFolderError(f"There is no folder {folder}. Train a model with: dsokr fit ... --out {folder}")
        task = _task(folder)
        model = DSOKR.load(folder, device=device)
        known = _known(folder)
        if len(known) != len(model.known_):
            raise ModelFolderError(
                f"{folder / 'candidates.csv'} is damaged: it lists {counted(len(known), 'output')}, the model "
                f"knows {len(model.known_):,}."
            )
        try:
            return cls(model, input_kind(task["input"]), output_kind(task["output"]), known, task["facts"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFolderError(f"{folder / 'task.json'} is damaged: {error!r}.") from error


def _best_for_ranking(model: DSOKR, validation: Pairs) -> Decoder:
    """The decoder with the rule by which the right answers stand highest among the known outputs."""
    z, truth = model.coefficients(validation.X), positions(validation.Y, model.known_.outputs)
    rules = model.decoder.alternatives()
    return max(rules, key=lambda choice: model.known_.ranks(z, truth, choice.scoring_rule()).reciprocal().mean())


def _task(folder: Path) -> dict[str, Any]:
    try:
        task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        version = int(task["format"])
    except FileNotFoundError as error:
        raise ModelFolderError(
            f"{folder} is not a model made by `dsokr fit`: task.json is missing."
            + (" DSOKR.load reads it in Python." if (folder / "config.json").exists() else "")
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{folder / 'task.json'} is damaged: {error}.") from error
    if version > FORMAT:
        raise ModelFolderError(f"{folder} was made by a newer dsokr. Upgrade with: pip install --upgrade dsokr")
    return task


def _known(folder: Path) -> list[str]:
    try:
        with (folder / "candidates.csv").open(encoding="utf-8", newline="") as file:
            return [row[0] if row else "" for row in tables.LongCells(csv.reader(file))][1:]
    except (OSError, ValueError, csv.Error) as error:
        raise ModelFolderError(f"{folder / 'candidates.csv'} cannot be read: {error}.") from error


def cell_text(cell: Cell) -> str:
    """Several cells as one, which is read as the same numbers."""
    return cell if isinstance(cell, str) else " ".join(map(str, cell))


def _joined(a: Outputs, b: Outputs) -> Outputs:
    if sp.issparse(a):
        return sp.vstack([a, b], format="csr")
    return np.concatenate([a, b]) if isinstance(a, np.ndarray) else [*a, *b]

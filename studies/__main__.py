"""The experiments that the command line can re-make, each with a full, a reduced and a quick study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dsokr.files import sole_writer
from studies import (
    chebi20,
    chebi20_report,
    label_ranking,
    label_ranking_report,
    multilabel,
    multilabel_report,
    smi2mol,
    smi2mol_report,
    strings,
    strings_report,
    synthetic,
    vectors,
)
from studies.results import Row

Size = Literal["full", "reduced", "quick"]

COMMAND = "dsokr reproduce"


@dataclass(frozen=True)
class Asked:
    """How an experiment is run: with which study, where its results go, and where data sets are."""

    size: Size
    results: Path
    figure: Path | None
    data: Path | None
    device: torch.device
    say: Callable[[str], None]

    def folder(self, name: str) -> Path:
        """Of the results; those of different studies do not mix."""
        return self.results / (name if self.size == "full" else f"{name}-{self.size}")

    def study(self, studies: Mapping[Size, Any]) -> Any:
        return studies[self.size]


@dataclass(frozen=True)
class Reproduced:
    """The rows of results, the same as a table for people, and the picture."""

    rows: list[Row]
    header: list[str]
    cells: list[list[str]]
    figure: Path


def synthetic_study(asked: Asked) -> Reproduced:
    folder = asked.folder("synthetic")
    study = asked.study({"full": synthetic.FULL, "reduced": synthetic.REDUCED, "quick": synthetic.QUICK})
    with sole_writer(folder, COMMAND):
        synthetic.run(study, folder, asked.device, asked.say)
    rows = synthetic.table(folder)
    header = ["model", "p", "parameters", "test MSE", "beyond NN", "Perfect h MSE"]
    cells = [
        [
            row["model"],
            str(row.get("p", "")),
            f"{row['parameters']:,}",
            f"{row['mse']:.5f}",
            f"{row['excess']:+.1%}" if "excess" in row else "",
            f"{row['perfect_h']:.5f}" if "perfect_h" in row else "",
        ]
        for row in rows
    ]
    return Reproduced(rows, header, cells, synthetic.figure(folder, asked.figure or folder / "figure.png"))


def smi2mol_study(asked: Asked) -> Reproduced:
    folder = asked.folder("smi2mol")
    study = asked.study({"full": smi2mol.FULL, "reduced": smi2mol.REDUCED, "quick": smi2mol.QUICK})
    with sole_writer(folder, COMMAND):
        smi2mol.run(study, folder, asked.data, asked.device, asked.say)
    rows = smi2mol_report.table(folder)
    figure = smi2mol_report.figure(folder, asked.figure or folder / "figure.png")
    return Reproduced(rows, smi2mol_report.HEADER, [smi2mol_report.cells(row) for row in rows], figure)


def chebi20_study(asked: Asked) -> Reproduced:
    folder = asked.folder("chebi20")
    study = asked.study({"full": chebi20.FULL, "reduced": chebi20.REDUCED, "quick": chebi20.QUICK})
    with sole_writer(folder, COMMAND):
        chebi20.run(study, folder, asked.data, asked.device, asked.say)
    rows = chebi20_report.table(folder)
    figure = chebi20_report.figure(folder, asked.figure or folder / "figure.png")
    return Reproduced(rows, chebi20_report.HEADER, [chebi20_report.cells(row) for row in rows], figure)


def label_ranking_study(asked: Asked) -> Reproduced:
    folder = asked.folder("label_ranking")
    study = asked.study({"full": label_ranking.FULL, "reduced": label_ranking.REDUCED, "quick": label_ranking.QUICK})
    with sole_writer(folder, COMMAND):
        label_ranking.run(study, folder, asked.data, asked.say)
        if asked.size == "full":
            label_ranking.run(label_ranking.SUSHI, folder, asked.data, asked.say)
    rows = label_ranking_report.wide(folder)
    names = label_ranking_report.datasets(rows)
    figure = label_ranking_report.figure(folder, asked.figure or folder / "figure.png")
    cells = [label_ranking_report.cells(row, names) for row in rows]
    return Reproduced(label_ranking.table(folder), label_ranking_report.header(rows), cells, figure)


def multilabel_study(asked: Asked) -> Reproduced:
    folder = asked.folder("multilabel")
    study = asked.study({"full": multilabel.FULL, "reduced": multilabel.REDUCED, "quick": multilabel.QUICK})
    with sole_writer(folder, COMMAND):
        multilabel.run(study, folder, asked.data, asked.say)
    rows = multilabel.table(folder)
    figure = multilabel_report.figure(folder, asked.figure or folder / "figure.png")
    return Reproduced(rows, multilabel_report.HEADER, [multilabel_report.cells(row) for row in rows], figure)


def strings_study(asked: Asked) -> Reproduced:
    folder = asked.folder("strings")
    study = asked.study({"full": strings.FULL, "reduced": strings.REDUCED, "quick": strings.QUICK})
    with sole_writer(folder, COMMAND):
        strings.run(study, folder, asked.data, asked.say)
    rows = strings_report.table(folder)
    figure = strings_report.figure(folder, asked.figure or folder / "figure.png")
    return Reproduced(rows, strings_report.HEADER, [strings_report.cells(row) for row in rows], figure)


def vectors_study(asked: Asked) -> Reproduced:
    folder = asked.folder("vectors")
    study = asked.study({"full": vectors.FULL, "reduced": vectors.REDUCED, "quick": vectors.QUICK})
    with sole_writer(folder, COMMAND):
        vectors.run(study, folder, asked.say)
    rows = vectors.table(folder)
    figure = vectors.figure(folder, asked.figure or folder / "figure.png")
    return Reproduced(rows, vectors.HEADER, [vectors.cells(row) for row in rows], figure)


EXPERIMENTS: dict[str, Callable[[Asked], Reproduced]] = {
    "synthetic": synthetic_study,
    "smi2mol": smi2mol_study,
    "chebi20": chebi20_study,
    "multilabel": multilabel_study,
    "label_ranking": label_ranking_study,
    "strings": strings_study,
    "vectors": vectors_study,
}

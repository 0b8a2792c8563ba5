"""The experiments that the command line can re-make, each with a full, a reduced and a quick study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dsokr.experiments import smi2mol, smi2mol_report, synthetic
from dsokr.experiments.results import Row

Size = Literal["full", "reduced", "quick"]


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
    smi2mol.run(study, folder, asked.data, asked.device, asked.say)
    rows = smi2mol_report.table(folder)
    header = ["method", "training molecules", "splits", "GED without edge labels", "GED with edge labels", "exact"]
    figure = smi2mol_report.figure(folder, asked.figure or folder / "figure.png")
    return Reproduced(rows, header, [smi2mol_report.cells(row) for row in rows], figure)


EXPERIMENTS: dict[str, Callable[[Asked], Reproduced]] = {"synthetic": synthetic_study, "smi2mol": smi2mol_study}

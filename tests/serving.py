"""A model to serve in tests: made by hand, so that nothing is trained."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from dsokr import kernels, sketch_basis, sketches
from dsokr.basis import SketchedBasis
from dsokr.errors import InputError
from dsokr.index import CandidateIndex, fingerprint
from dsokr.commands.kinds import Read

DIM = 4
MOLECULES = ["C", "CC", "CCO", "CCN", "c1ccccc1", "CC(=O)O", "C#N", "OCCO", "CCCC", "C1CC1", "CC(C)O", "N"]
NAMES = ["methane", "ethane", "ethanol", "", 'benzene, "pure"', "acetic acid"] + [""] * 6


@dataclass(frozen=True)
class Kind:
    """Cells are what they say; only "bad" cannot be read."""

    name: str
    mean: tuple[float, ...] = ()

    def read(self, cells: list[Any]) -> Read:
        bad = {at: "'bad' cannot be read." for at, cell in enumerate(cells) if cell == "bad"}
        return Read(cells, [at for at in range(len(cells)) if at not in bad], bad)

    def key(self, cell: str) -> str:
        return cell.lower()


@dataclass
class HandMade:
    """Coefficients from the letters of a text, or the first numbers of a vector. It may decode, to one output."""

    input: Any = field(default_factory=lambda: Kind("text"))
    output: Any = field(default_factory=lambda: Kind("smiles"))
    rule: Any = "cosine"
    answer: str = ""  # what it decodes to
    asked: list[int] = field(default_factory=list)  # how many inputs came at once

    @cached_property
    def basis(self) -> SketchedBasis:
        ys = torch.randn(20, DIM, generator=torch.Generator().manual_seed(0))
        return sketch_basis(kernels.Linear(), ys, sketches.Full(), generator=torch.Generator())

    def coefficients(self, inputs: list[Any]) -> torch.Tensor:
        self.asked.append(len(inputs))
        for position, reason in self.input.read(inputs).bad.items():
            raise InputError(f"Input {position}: {reason}")
        rows = []
        for cell in inputs:
            numbers = [float(ord(letter)) for letter in cell] if isinstance(cell, str) else list(cell)
            rows.append((numbers * DIM)[:DIM])
        return torch.tensor(rows, dtype=torch.float64) + 1

    @property
    def searches(self) -> bool:
        return bool(self.answer)

    def decoded(self, z: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        return [self.answer] * len(z), z.sum(dim=1)

    def index(self, texts: list[str] = MOLECULES, names: list[str] | None = None) -> CandidateIndex:
        psi = torch.randn(len(texts), DIM, generator=torch.Generator().manual_seed(1))
        names = NAMES if names is None and texts is MOLECULES else names
        return CandidateIndex.in_memory(texts, psi, psi.square().sum(1), names, fingerprint(self.basis))

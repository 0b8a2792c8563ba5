"""Kernels on molecules that are given as SMILES."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from torch import Tensor

from dsokr.errors import InputError, check_fields
from dsokr.kernels.base import Evaluate, Kernel
from dsokr.kernels.sparse import Split
from dsokr.kernels.vectors import Dice, Tanimoto
from dsokr.outputs import Outputs


@dataclass(frozen=True)
class OnMolecules(Kernel):
    """k(φ(y), φ(y')) for SMILES y, where φ is ``dsokr.chem.graphs`` or ``dsokr.chem.fingerprints``.

    ``DSOKR(kernel).fit(X, smiles)`` means this for kernels on graphs, and for ``Tanimoto()`` and ``Dice()``.

    >>> from dsokr.kernels import VertexHistogram
    >>> OnMolecules(VertexHistogram(), "graphs")(["CCO"], ["OCC", "CC"])
    tensor([[5., 4.]], dtype=torch.float64)
    """

    kernel: Kernel
    form: Literal["graphs", "fingerprints"]

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.kernel(self.convert(a), self.convert(b))

    def diag(self, a: Outputs) -> Tensor:
        return self.kernel.diag(self.convert(a))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        evaluate = self.kernel.against(self.convert(anchors), weights)
        return lambda ys: evaluate(self.convert(ys))

    def split(self, ys: Outputs) -> Split | None:
        return self.kernel.split(self.convert(ys))

    def convert(self, ys: Outputs) -> Outputs:
        """Return φ of SMILES; graphs or fingerprints stay as they are."""
        are_texts = isinstance(ys, list) and all(isinstance(y, str) for y in ys)
        return getattr(import_module("dsokr.chem"), self.form)(ys) if are_texts else ys


def suit_texts(kernel: Kernel, ys: Outputs) -> Kernel:
    """Return the kernel or, where outputs are texts that it does not take, the kernel on the molecules they name."""
    if not isinstance(ys, list) or not all(isinstance(y, str) for y in ys):
        return kernel
    form: Any = "fingerprints" if isinstance(kernel, Tanimoto | Dice) else "graphs"
    for choice in (kernel, OnMolecules(kernel, form)):
        with suppress(InputError):
            choice(ys[:1], ys[:1])
            return choice
    return kernel

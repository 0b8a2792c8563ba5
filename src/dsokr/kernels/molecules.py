"""Kernels on molecules that are given as SMILES."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from dsokr.errors import InputError, check_fields
from dsokr.kernels.base import Composed, Kernel
from dsokr.kernels.vectors import Dice, Tanimoto
from dsokr.outputs import Outputs


@dataclass(frozen=True)
class OnMolecules(Composed):
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

    def convert(self, ys: Outputs) -> Outputs:
        """Return φ of SMILES; graphs or fingerprints stay as they are."""
        return getattr(import_module("dsokr.chem"), self.form)(ys) if _are_texts(ys) else ys


def suit_texts(kernel: Kernel, ys: Outputs) -> Kernel:
    """Return the kernel or, where outputs are texts that it does not take, the kernel on the molecules they name."""
    if not _are_texts(ys):
        return kernel
    form: Any = "fingerprints" if isinstance(kernel, Tanimoto | Dice) else "graphs"
    for choice in (kernel, OnMolecules(kernel, form)):
        with suppress(InputError):
            choice(ys[:1], ys[:1])
            return choice
    return kernel


def _are_texts(ys: Outputs) -> bool:
    return isinstance(ys, list) and all(isinstance(y, str) for y in ys)

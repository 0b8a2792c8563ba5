"""Values and tensors by marks that are the same in another process: for what must not change between two runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from numbers import Real
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Generator, Tensor

BLOCK = 2**24  # bytes of a tensor looked at together


def name_of(value: Any) -> str:
    """A value in words, without addresses in memory; functions and classes by their names, tensors by a hash.

    >>> name_of(re.compile), name_of(0.5)
    ('re.compile', '0.5')
    """
    if isinstance(value, str | Real):
        return str(value)
    if isinstance(value, Tensor):
        return f"tensor {hash_of(torch.atleast_1d(value))}"
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if is_dataclass(value):
        parts = (f"{f.name}={name_of(getattr(value, f.name))}" for f in fields(value) if f.repr)
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def hash_of(tensor: Tensor) -> str:
    """The beginning of the SHA-256 of its type, shape and bytes."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for block in _blocks(tensor):
        found.update(block.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def mixed_sum(table: Tensor, column: Tensor) -> float:  # (n, p), (n,)
    """Σ_ij u_i t_ij v_j with random numbers u and v, the same ones always, and t the table with one more column.

    For numbers that are computed, and with another number of threads differ in their last digits. It depends on the
    place of every one of them.
    """
    n, p = table.shape
    generator = Generator().manual_seed(0)
    u, v = (torch.randn(size, generator=generator, dtype=torch.float64) for size in (n, p + 1))
    along = torch.cat([block.double() @ v[:p] for block in _blocks(table)])
    return (u @ (along + v[p] * column.cpu().double())).item()


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Its rows in main memory, some at a time."""
    for block in tensor.detach().split(max(1, BLOCK // max(1, tensor[:1].nbytes))):
        yield block.cpu()

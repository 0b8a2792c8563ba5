"""The search of molecules with a given formula, mass or substructure, against all such molecules."""

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr import DSOKR, Graph, kernels, sketch_basis, sketches
from dsokr.decoders import EmbeddedOutputs, GraphSearch, Molecules
from dsokr.decoders.restricted import ELEMENTS, HYDROGEN, Restricted, list_forms, read_formula
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import WeisfeilerLehman
from dsokr.regressors import KernelRidge
from studies.data import molecules

VALENCES = dict(Molecules().valences)
SYMBOLS = {element.number: symbol for symbol, element in ELEMENTS.items()}
DOMAIN = Molecules(max_atoms=5)
KERNEL = WeisfeilerLehman(3, edge_labels=True).normalized() + WeisfeilerLehman(1, edge_labels=True)


def write_formula(graph: Graph) -> str:
    counts = Counter(SYMBOLS[label] for label in graph.labels)
    counts["H"] = sum(VALENCES[label] for label in graph.labels) - 2 * sum(order for *_, order in graph.edges)
    return "".join(f"{symbol}{counts[symbol]}" for symbol in sorted(counts) if counts[symbol])


def weigh(graph: Graph) -> float:
    masses = {symbol: element.mass for symbol, element in ELEMENTS.items()} | {"H": HYDROGEN}
    return sum(n * ({e.number: e.mass for e in ELEMENTS.values()} | {1: masses["H"]})[a] for a, n in read_formula(write_formula(graph)).items())


def all_molecules(labels: tuple[int, ...], bonds: int) -> list[Graph]:
    """All connected molecules of these atoms whose bond orders add up to ``bonds``, once each, by brute force."""
    n, found = len(labels), {}
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    same = [order for order in permutations(range(n)) if [labels[i] for i in order] == list(labels)]

    def extend(orders: list[int], free: list[int], left: int) -> None:
        if len(orders) == len(pairs):
            if left == 0 and is_connected(n, pairs, orders):
                table = dict(zip(pairs, orders, strict=True))
                forms = (tuple(table[min(a, b), max(a, b)] for i, j in pairs for a, b in [(o[i], o[j])]) for o in same)
                key = max(forms)
                found[key] = Graph(labels, tuple((*pair, o) for pair, o in zip(pairs, key, strict=True) if o))
            return
        i, j = pairs[len(orders)]
        for order in range(min(3, left, free[i], free[j]) + 1):
            rest = list(free)
            rest[i] -= order
            rest[j] -= order
            extend([*orders, order], rest, left - order)

    extend([], [VALENCES[label] for label in labels], bonds)
    return list(found.values())


def is_connected(n: int, pairs: list[tuple[int, int]], orders: list[int]) -> bool:
    parts = list(range(n))
    for (i, j), order in zip(pairs, orders, strict=True):
        if order:
            parts = [parts[i] if part == parts[j] else part for part in parts]
    return len(set(parts)) == 1


FORMULAS = ["C4H6O", "C3H5NO", "C2H4N2O", "C3H3FO", "C5H6", "C3H8O", "CHNO", "C2H2N2O", "C4H5N"]


def brute_force(formula: str) -> list[Graph]:
    counts = read_formula(formula)
    hydrogens = counts.pop(1, 0)
    labels = tuple(sorted(counts.elements()))
    return all_molecules(labels, (sum(VALENCES[label] for label in labels) - hydrogens) // 2)


@pytest.fixture(scope="module")
def task():
    known = molecules.generate(300, seed=0, max_atoms=5)
    basis = sketch_basis(KERNEL, known, sketches.SubSample(150), generator=Generator().manual_seed(0))
    return basis, EmbeddedOutputs(basis, known)


if __name__ == "__main__":
    for formula in FORMULAS:
        everything = brute_force(formula)
        limits = Restricted(DOMAIN, formula)
        assert (limits.measure(GraphBatch.of(everything)) == 0).all()
        phi = WeisfeilerLehman(5, edge_labels=True)
        names = lambda graphs: [hash(row) for row in phi.features(GraphBatch.of(graphs)).rows()]
        reached, todo = dict(zip(names(everything[:1]), everything[:1])), everything[:1]
        while todo:
            near = list(limits.neighbors(GraphBatch.of(todo)).graphs)
            new = {name: graph for name, graph in zip(names(near), near) if name not in reached}
            reached |= new
            todo = list(new.values())
        print(formula, len(everything), len(set(names(everything))), len(reached))

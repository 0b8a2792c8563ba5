"""Searches among graphs that look like known ones."""

from dataclasses import replace

import pytest
from torch import Generator

from dsokr.basis import sketch_basis
from dsokr.decoders import EmbeddedOutputs, GraphSearch, LabelledGraphs, Molecules
from dsokr.decoders.familiar import Familiar
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import WeisfeilerLehman
from dsokr.sketches import SubSample
from studies.data.molecules import generate

KERNEL = WeisfeilerLehman(2, edge_labels=True).normalized()
GRAPHS = GraphBatch.of(generate(120, seed=0))
KNOWN, OTHERS = GRAPHS[:80], GRAPHS[80:]


def name_neighborhoods(graph, radius):
    """By definition: the tree of labels that is unrolled from every node."""
    around = [[] for _ in graph.labels]
    for i, j, label in graph.edges:
        around[i].append((j, label))
        around[j].append((i, label))

    def unroll(v, depth):
        below = sorted((label, unroll(u, depth - 1)) for u, label in around[v]) if depth else []
        return str((graph.labels[v], below))

    return {unroll(v, radius) for v in range(len(graph.labels))}


@pytest.mark.parametrize("radius", [0, 1, 2])
def test_a_graph_is_familiar_if_known_graphs_have_all_its_neighborhoods(radius):
    known = set().union(*(name_neighborhoods(graph, radius) for graph in KNOWN))
    expected = [name_neighborhoods(graph, radius) <= known for graph in OTHERS]
    domain = Familiar.of(KNOWN, Molecules(), radius)
    assert domain.contains(OTHERS).tolist() == expected
    assert domain.contains(KNOWN).all()
    near, kept = Molecules().neighbors(KNOWN[:5]), domain.neighbors(KNOWN[:5])
    inside = [name_neighborhoods(graph, radius) <= known for graph in near.graphs]
    assert list(kept.graphs) == [graph for graph, is_inside in zip(near.graphs, inside, strict=True) if is_inside]
    assert radius == 0 or not all(inside)


@pytest.mark.parametrize("rule", ["kernel", "projected", "cosine"])
@pytest.mark.parametrize("pieces", [0, 8])
@pytest.mark.parametrize("moves", [Molecules(), LabelledGraphs.like(KNOWN)], ids=["molecules", "like"])
def test_answers_are_familiar_and_never_worse_than_the_best_known_output(rule, pieces, moves):
    basis = sketch_basis(KERNEL, KNOWN, SubSample(60), generator=Generator().manual_seed(0))
    known, z = EmbeddedOutputs(basis, KNOWN), (basis.embed(OTHERS[:12]) + basis.embed(OTHERS[12:24])) / 2
    search = GraphSearch(moves, rule, beam=8, budget=500, pieces=pieces)
    free, found = (GraphSearch.best(own, basis, z, known, 3) for own in (search, replace(search, familiar=2)))
    domain = Familiar.of(KNOWN, moves, 2)
    for best, one in zip(known.top(z, 1, rule).scores[:, 0], found, strict=True):
        assert domain.contains(GraphBatch.of(one.outputs)).all()
        assert one.scores[0] >= best - 1e-9
    assert not all(domain.contains(GraphBatch.of(one.outputs)).all() for one in free)


def test_refuses_what_does_not_go_together():
    with pytest.raises(InputError, match="familiar does not go together with a formula"):
        GraphSearch(familiar=1, formula="C6H6")
    with pytest.raises(InputError, match="familiar"):
        GraphSearch(familiar=-1)

"""Molecules that are assembled from what a definition names, and the choice among them."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Generator

pytest.importorskip("rdkit")

from rdkit import Chem

from studies import chebi20, choosing
from studies import chebi20_models as models
from studies.data.assembly import (
    ALL_GROUPS,
    ONE_GROUP,
    TOGETHER,
    Pools,
    assemble,
    attach,
    list_grown,
    list_hands,
    make_pools,
)
from studies.data.chebi20 import describe_molecules
from studies.data.definitions import Part
from studies.data.forms import read_and_write
from studies.data.mentions import DEFINITION, OTHER, SPELLED, Mentions
from studies.results import read_rows
from studies.study import CPU, Session

BASES = ("CCCO", "Cc1ccccc1", "CC(=O)NC", "C1CC1C#N", "N[C@@H](C)C(=O)O")
CHLORO = Part("[Cl]", 1)


def replace_hydrogens(smiles, count):
    """By brute force: every choice of so many hydrogens becomes chlorine."""
    molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
    hydrogens = [atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetAtomicNum() == 1]
    found = set()
    for chosen in combinations(hydrogens, count):
        changed = Chem.RWMol(molecule)
        for place in chosen:
            changed.GetAtomWithIdx(place).SetAtomicNum(17)
        found.add(read_and_write(Chem.MolToSmiles(Chem.RemoveHs(changed), isomericSmiles=False)))
    return found


def flatten(smiles):
    return read_and_write(Chem.MolToSmiles(Chem.MolFromSmiles(smiles), isomericSmiles=False))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("times", [1, 2])
def test_groups_are_attached_wherever_a_hydrogen_is(base, times):
    found = list_grown(base, [Part("[Cl]", times)], 1000)
    assert {flatten(one) for one in found} == replace_hydrogens(base, times)


def test_what_is_attached_is_in_the_molecule():
    assert set(attach("c1ccccc1", "[O]")) == set()  # no carbon has two hydrogens
    assert set(attach("CC", "C[C]=O")) == {"CCC(C)=O"}
    assert set(attach("CC", "CC")) == set()  # no open valence
    assert set(attach("C[C@H](N)C(=O)O", "[CH3]")) >= {"CN[C@@H](C)C(=O)O", "COC(=O)[C@H](C)N"}


def test_hands_are_those_of_undefined_centres():
    assert len(list_hands("CC(O)C(N)Cl")) == 5 and list_hands("CCO") == ["CCO"]
    assert {flatten(one) for one in list_hands("CC(O)C(N)Cl")} == {"CC(O)C(N)Cl"}
    assert list_hands("C[C@H](O)Cl") == ["C[C@H](O)Cl"]
    many = "CC(O)C(O)C(O)C(O)Cl"
    assert list_hands(many) == [many]


def test_ways_that_lead_anywhere_lead_to_none():
    one, both = Part("[OH]", 1), [Part("[OH]", 1), CHLORO]
    assert set(assemble(["CCC"], [one]).values()) == {ALL_GROUPS}
    assert set(assemble(["CCC"], both).values()) == {ALL_GROUPS, ONE_GROUP}
    assert assemble(["CCC"], both, most=4) == dict.fromkeys(["CCCO", "CC(C)O", "CCCCl", "CC(C)Cl"], ONE_GROUP)
    assert assemble(["CCC"], both, most=3) == {}
    assert assemble(["CCO", "CC(=O)O"], []) == {"CCOC(C)=O": TOGETHER}
    assert assemble([], both) == assemble(["CCC"], []) == {}


def test_pools_hold_what_is_named_and_what_can_be_assembled_from_it():
    named = {
        "a text": [("CCO", DEFINITION), ("c1ccccc1", OTHER), ("CCO", OTHER)],
        "another": [],
        "a third": [("c1ccccc1", OTHER)],
    }
    parts = {"a text": [CHLORO, Part("CC", 1)], "another": [Part("C", 1), CHLORO], "a third": [CHLORO]}
    tokens, vectors = np.array(["UNK", "1"]), np.zeros((2, 3), np.float32)
    pools = make_pools(named, parts, tokens, vectors)
    found = {
        text: {pools.molecules.smiles[row]: pools.ways[way] for row, way in own} for text, own in pools.by_text.items()
    }
    assert found["a text"] == {"CCO": DEFINITION, "c1ccccc1": OTHER} | dict.fromkeys(
        ["CCCl", "OCCCl", "CC(O)Cl", "C[C@@H](O)Cl", "C[C@H](O)Cl", "CCOCl"], ALL_GROUPS
    )
    assert found["another"] == {"CCl": ALL_GROUPS}
    assert found["a third"] == {"c1ccccc1": OTHER}  # groups belong to what a definition names


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """Coordinates that are right up to noise; every other text names its molecule, and all name four others."""
    data, g = describe_molecules(60, 80, 80), np.random.default_rng(0)
    pool, texts = {}, [*data.val.texts, *data.test.texts]
    for i, (text, row) in enumerate(zip(texts, [*data.val.rows, *data.test.rows], strict=True)):
        others = g.choice(len(data.molecules), 4, replace=False)
        pool[text] = [(int(other), 0) for other in others if other != row] + [(int(row), 0)] * (i % 2)
    none = {text: [] for text in texts}
    mentions, pools = Mentions(data.molecules, [SPELLED], none), Pools(data.molecules, [SPELLED], pool)
    monkeypatch.setattr(choosing, "load_definitions", lambda texts: {text: [] for text in texts})
    monkeypatch.setattr(chebi20, "load_pools", lambda *given: pools)
    task = models.TextTask(data, models.make_views(data.molecules), "", "", CPU, {models.INFERRED: mentions})
    psi = task.span(models.KERNELS[models.CHOOSING.key["kernel"]], models.ANCHORS, 0).embed(task.outputs).float()
    noise = Generator().manual_seed(0)

    def guess(part):
        true = psi[getattr(data, part).rows]
        return true + 0.5 * true.norm(dim=1, keepdim=True) * torch.randn(true.shape, generator=noise) / 50**0.5

    member, session = models.ModelVectors(guess("val"), guess("test"), psi, torch.ones(len(psi))), Session(tmp_path)
    config = replace(chebi20.QUICK, seeds=(0,))
    chebi20.run_choice(config, ("a", "b"), task, session)
    assert not list(tmp_path.iterdir())  # no member was kept
    for encoder in ("a", "b"):
        member.save(chebi20.vectors_file(task, models.CHOOSING.name, 0, session, encoder))
    for _ in range(2):  # the second time it is known
        chebi20.run_choice(config, ("a", "b"), task, session)
    (row,) = read_rows(tmp_path / "generation.jsonl")
    assert row["encoder"] == "a & b" and row["n_test"] == 80
    return row["metrics"]


def test_the_right_one_of_what_texts_name_is_chosen(chosen):
    assert chosen["in_pool"] == 0.5 and chosen["validity"] == 1
    for part in ("", "val_"):
        assert 0.4 <= chosen[f"{part}exact"] <= 0.5
        assert chosen[f"{part}exact"] < chosen[f"{part}morgan"] < 1

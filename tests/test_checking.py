"""What definitions say of their molecules, and candidates that are compared with it."""

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr.metrics import ranks
from studies.checking import Check, Evidence, Shortlists, count_missing, describe_text, put_first

pytest.importorskip("rdkit")

from studies.data.assembly import Pools
from studies.data.definitions import Part, count_atoms, count_places, list_parts, sum_up
from studies.data.mentions import SPELLED, Mentions

SMILES = {
    "pyrazine": "c1cnccn1",
    "ethyl": "[CH2]C",
    "hydroxy": "[OH]",
    "methyl": "[CH3]",
    "acetic acid": "CC(=O)O",
    "ethanol": "CCO",
    "glycine": "NCC(=O)O",
}


@pytest.mark.parametrize(
    ("definition", "kind", "smiles"),
    [
        ("pyrazine in which one of the hydrogens is replaced by an ethyl group", "with all groups", "CCc1cnccn1"),
        ("pyrazine carrying methyl groups at positions 2 and 3", "with all groups", "Cc1nccnc1C"),
        ("pyrazine bearing two methyl substituents", "with all groups", "Cc1nccnc1C"),
        (
            "pyrazine with hydroxy and methyl groups at positions 2 and 5, respectively",
            "with all groups",
            "Cc1cnc(O)cn1",
        ),
        ("an ester obtained from acetic acid and ethanol", "condensed", "CCOC(C)=O"),
        ("a peptide of three glycine residues", "condensed", "NCC(=O)NCC(=O)NCC(=O)O"),
        ("a mixture of acetic acid and ethanol", "together", "CC(=O)O.CCO"),
    ],
)
def test_atoms_of_what_a_definition_names_are_summed_up(definition, kind, smiles):
    parts = list_parts(definition.split(), SMILES)
    assert np.array_equal(sum_up(parts)[kind], count_atoms(smiles))


def test_nothing_is_summed_up_without_a_molecule():
    assert sum_up([]) == sum_up([Part("[OH]", 2)]) == {}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("groups at positions 2, 3, 4a and 5", 4),
        ("groups at the 2 and 3beta positions", 2),
        ("group at position 2", 1),
        ("groups on both sides", 1),
        ("groups at positions 2 and 3, respectively", 1),
        ("groups", 1),
        ("", 1),
    ],
)
def test_places_are_counted(words, count):
    assert count_places(words.split()) == count


def test_protons_do_not_change_what_is_compared():
    acid, anion, zwitterion = map(count_atoms, ("NCC(=O)O", "NCC(=O)[O-]", "[NH3+]CC(=O)[O-]"))
    assert np.array_equal(acid, anion) and np.array_equal(acid, zwitterion)
    assert not np.array_equal(acid, count_atoms("NCC=O"))


def test_what_is_missing_is_counted():
    parts = [Part("[OH]", 2), Part("[CH3]", 1), Part("c1ccccc1", 1)]
    found = count_missing(parts, ["OCC(O)c1ccccc1", "CCO", "C1CCCCC1"])
    assert found.tolist() == [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [0.5, 1, 2, 1, 1]]
    assert np.isnan(count_missing([], ["CCO"])).all()


def test_charges_and_hands_are_read_from_definitions():
    told = describe_text("The molecule is (2S)-versicolorin A(2-) and (3E)-ene. It is an anion(1-).")
    assert told[2:] == [-2.0, 1, 0, 1] and np.isnan(describe_text("A thing.")[2])


@pytest.fixture(scope="module")
def texts():
    from studies.data.chebi20 import describe_molecules

    return describe_molecules(50, 60, 60)


def test_what_a_text_spells_out_comes_first(texts):
    """Members know the true molecules up to noise; every other text spells out its own."""
    rows = {part: getattr(texts, part).rows for part in ("val", "test")}
    by_text = {f"{part} {i}": [(int(row), 0)] * (i % 2) for part, own in rows.items() for i, row in enumerate(own)}
    names = {part: [text for text in by_text if text.startswith(part)] for part in rows}
    none: dict[str, list] = {text: [] for text in by_text}
    mentions, pools = Mentions(texts.molecules, [SPELLED], by_text), Pools(texts.molecules, [], none)
    evidence = Evidence(texts.molecules, mentions, none, pools)
    g, lists, scores = Generator().manual_seed(0), {}, {}
    for part, own in rows.items():
        noise = torch.randn(len(own), len(texts.molecules), generator=g, dtype=torch.float64)
        scores[part] = torch.eye(len(texts.molecules), dtype=torch.float64)[own] + noise
        lists[part] = Shortlists.of(names[part], [scores[part]] * 2, torch.from_numpy(own), evidence, size=100)
    ordered = Check(size=100).rate(lists["val"], lists["test"])
    for part, own in zip(rows, ordered, strict=True):
        truth = torch.from_numpy(rows[part])
        before, after = ranks(scores[part], truth), ranks(put_first(scores[part], lists[part].rows, own), truth)
        listed = torch.from_numpy(lists[part].is_true.any(axis=1))
        assert (after[~listed] == before[~listed]).all()  # what is on no list keeps its place
        odd = torch.arange(len(truth)) % 2 == 1
        assert (after[odd & listed] == 1).double().mean() > 0.7 > 2 * (before[odd & listed] == 1).double().mean()


def test_trees_rate_no_text_that_they_were_trained_on(texts, monkeypatch):
    seen = []

    class Trees:
        def fit(self, numbers, is_true):
            self.texts = set(numbers[:, 0])
            return self

        def decision_function(self, numbers):
            seen.append(self.texts & set(numbers[:, 0]))
            return numbers[:, 0]

    monkeypatch.setattr("studies.checking.HistGradientBoostingClassifier", lambda **options: Trees())
    own, others = (
        Shortlists(torch.zeros(20, 3), np.repeat(start + np.arange(20.0), 3).reshape(20, 3, 1), np.zeros((20, 3)))
        for start in (0, 100)
    )
    on_own, on_others = Check().rate(own, others)
    assert len(seen) == 6 and not any(seen)
    assert on_own[:, 0].tolist() == list(range(20)) and on_others[0].tolist() == [100.0] * 3

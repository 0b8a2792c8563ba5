"""Generated molecules with generated descriptions, in the form of ChEBI-20: nothing to download."""

import itertools

import numpy as np

from studies.data.chebi20 import UNKNOWN, ChEBI20, Descriptions, make_molecules
from studies.data.molecules import generate

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ELEMENTS = {"carbon": "[#6]", "nitrogen": "[#7]", "oxygen": "[#8]", "fluorine": "[#9]"}
GROUPS = {
    "carboxylic acid": "[CX3](=O)[OX2H1]",
    "ester": "[CX3](=O)[OX2H0][#6]",
    "amide": "[CX3](=O)[NX3]",
    "aldehyde": "[CX3H1]=O",
    "ketone": "[#6][CX3](=O)[#6]",
    "hydroxy group": "[OX2H1]",
    "ether": "[OX2H0]([#6])[#6]",
    "primary amine": "[NX3H2]",
    "secondary amine": "[NX3H1]([#6])[#6]",
    "tertiary amine": "[NX3H0]([#6])([#6])[#6]",
    "imine": "[#6]=[NX2]",
    "nitrile": "C#N",
    "alkene": "[#6]=[#6]",
    "alkyne": "C#C",
    "methyl group": "[CH3]",
    "fluoro substituent": "F",
    "three-membered ring": "[r3]1[r3][r3]1",
    "four-membered ring": "[r4]1[r4][r4][r4]1",
    "five-membered ring": "[r5]1[r5][r5][r5][r5]1",
    "six-membered ring": "[r6]1[r6][r6][r6][r6][r6]1",
}
WIDTH = 30  # of the vectors that stand for Mol2vec's


def describe_molecules(n_train: int, n_val: int, n_test: int, seed: int = 0, max_atoms: int = 9) -> ChEBI20:
    """Generate different molecules and describe the atoms, groups and rings of each, in varying words.

    Several molecules may fit one description. The vectors of neighbourhoods are random here, not learned.
    """
    from dsokr import chem  # RDKit is needed here only

    rng = np.random.default_rng(seed)
    smiles = chem.many_smiles(generate(n_train + n_val + n_test, seed, max_atoms))
    smiles = [smiles[i] for i in rng.permutation(len(smiles))]
    counts = {name: chem.matches(smiles, pattern) for name, pattern in (ELEMENTS | GROUPS).items()}
    texts = [_write_text({name: int(found[i]) for name, found in counts.items()}, rng) for i in range(len(smiles))]
    identifiers = np.unique(np.concatenate(chem.environments(smiles)))
    tokens = np.array([UNKNOWN, *map(str, identifiers[identifiers >= 0])])
    vectors = rng.normal(size=(len(tokens), WIDTH)).astype(np.float32)
    molecules = make_molecules(smiles, np.arange(len(smiles)), tokens, vectors)
    bounds = np.cumsum([0, n_train, n_val, n_test])
    train, val, test = (Descriptions(texts[a:b], np.arange(a, b)) for a, b in itertools.pairwise(bounds))
    return ChEBI20(train, val, test, molecules, "generated")


def _write_text(counts: dict[str, int], rng: np.random.Generator) -> str:
    atoms = _write_list({f"{name} atom": counts[name] for name in ELEMENTS})
    groups = {name: counts[name] for name in rng.permutation(list(GROUPS)) if counts[name]}
    opening = rng.choice(["The molecule is made of", "The molecule consists of", "A molecule of"])
    linking = rng.choice(["It has", "It contains", "Among its groups are"])
    return f"{opening} {atoms}." + (f" {linking} {_write_list(groups)}." if groups else "")


def _write_list(counts: dict[str, int]) -> str:
    items = [f"{NUMBERS[min(n, 9)]} {name}{'s' * (n > 1)}" for name, n in counts.items() if n]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"

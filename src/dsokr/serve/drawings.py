"""Molecules that are drawn, and the pictures that are kept."""

import re
from collections import OrderedDict

from dsokr.errors import InputError

SIZE = (260, 190)  # pixels
LONGEST = 400  # characters of SMILES
MOST_ATOMS = 100  # RDKit lets nothing else run while it draws: of so many atoms, 45 ms at the worst
KEPT_BYTES = 32_000_000
ATOM = re.compile(r"\[[^]]*]|Br|Cl|[A-Za-z*]")


def check_size(smiles: str) -> None:
    """Refuses what would take long to draw. Atoms are counted in the text, since reading it may take long, too.

    >>> check_size("C" * 101)
    Traceback (most recent call last):
    dsokr.errors.InputError: Molecules of more than 100 atoms are not drawn here. Got 101.
    """
    atoms = len(ATOM.findall(smiles))
    if atoms > MOST_ATOMS:
        raise InputError(f"Molecules of more than {MOST_ATOMS} atoms are not drawn here. Got {atoms}.")


class Kept:
    """Pictures by their SMILES: those asked for last, as many as fit into so many bytes."""

    def __init__(self, most: int = KEPT_BYTES):
        self.most, self.size = most, 0
        self._pictures: OrderedDict[str, bytes] = OrderedDict()

    def get(self, smiles: str) -> bytes | None:
        if smiles in self._pictures:
            self._pictures.move_to_end(smiles)
        return self._pictures.get(smiles)

    def keep(self, smiles: str, picture: bytes) -> None:
        self.size += len(picture) - len(self._pictures.pop(smiles, b""))
        self._pictures[smiles] = picture
        while self.size > self.most:
            self.size -= len(self._pictures.popitem(last=False)[1])

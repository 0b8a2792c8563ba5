"""Systematic names for what a description spells out: "octane substituted by a hydroxy group at position 3".

ChEBI's definitions are written to patterns. Many start from a molecule and change it in words, and the words can be
turned into a systematic name, 3-hydroxy-octane, which OPSIN reads.
"""

import re
from collections.abc import Iterable, Iterator

TIMES = {"both": 2, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
SIMPLE = ("", "", "di", "tri", "tetra", "penta", "hexa", "hepta", "octa")  # how often a group is there
COMPLEX = ("", "", "bis", "tris", "tetrakis", "pentakis", "hexakis", "heptakis", "octakis")
HALOGENS = ("fluorine", "chlorine", "bromine", "iodine")
SYNONYMS = {
    **{halogen + ending: f"{halogen[:-3]}o" for halogen in HALOGENS for ending in ("", "s")},
    "amine": "amino",
    "hydroxyl": "hydroxy",
    "hydroxyls": "hydroxy",
    "keto": "oxo",
    "methylene": "methylidene",
    "monophosphate": "phosphonooxy",
    "phosphate": "phosphonooxy",
    "sulfate": "sulfooxy",
    "prenyl": "3-methylbut-2-en-1-yl",
    "geranyl": "(2E)-3,7-dimethylocta-2,6-dien-1-yl",
}
ATOMS = {"N": "nitrogen amino amide amine N indole", "O": "oxygen hydroxy hydroxyl phenolic", "S": "sulfur thiol"}

LOCANT = r"(?:(?:C-)?\d+(?:[a-h](?![a-z]))?'*(?:alpha|beta|[RSEZ])?|[NO]\d*'*)(?![a-z\d])"
AND = r"(?:-?, and (?:the )?|-? and (?:the )?|-?, )"
PLACES = rf"(?:the )?(?:positions? )?(?P<places>{LOCANT}(?:{AND}{LOCANT})*)(?:[- ]positions?)?"
REPLACED = r"(?:is|are|has been|have been|being|was|were) (?:each )?(?:replaced|substituted) (?:by|with)"
GROUPS = r"(?P<groups>.+?)(?=,? respectively|[.;](?: |$)| \(|, (?:while|whilst|which|used|isolated)|$)"
GROUP = r"[- ](?:group|substituent|residue|moiety|moietie|atom|unit|function)s?"
CHANGES = (  # of the molecule that is named before
    re.compile(
        rf",? (?:in which|where|with)(?: [a-z]+){{,3}} hydrogens?(?: atoms?)? (?:at|on) {PLACES}(?: of [^ ]+)? "
        rf"{REPLACED} {GROUPS}"
    ),
    re.compile(rf" (?:which is |that is )?substituted at {PLACES} (?:by|with) {GROUPS}"),
)
ON_ATOM = re.compile(rf",? in which (?P<what>(?:[\w-]+ ){{,4}}?hydrogens?(?: [\w-]+){{,8}}?) {REPLACED} {GROUPS}")
CARRYING = re.compile(r" (?:which is |that is )?(?:substituted(?: by| with)|carrying|bearing|having) (?P<rest>[^.;]+)")
CARRIED = re.compile(rf"(?:,? and |, )?(?P<groups>(?:(?! at | is | are | which | of ).)+?) at {PLACES}")
NO_PARENT = re.compile(r".*(?:\b(?:an?|the|of|is|that|and|in|by|with|which|molecule|consists|where)|,) ")
STEREO = re.compile(r"\(the ([\w,']+)[- ](?:dia)?(?:stereo|enantio)?(?:iso)?mer\)")

SYNONYM = re.compile(r" \([a-z-]+\)")  # "hexadecanoyl (palmitoyl)"
ACYLATED = re.compile(r"(?:^| )(?P<class>[^ ]*acyl[^ ]*(?: \d-phosphate)?)")
ACYL = re.compile(r"(?:^| )((?:all-(?:cis|trans)-)?[^ ]*(?:oyl|acetyl|propionyl|decyl|icosyl))(?=[ ,.;]|$)")
LIPIDS = {
    "phosphatidylcholine": "1,2-diacyl-sn-glycero-3-phosphocholine",
    "phosphatidylethanolamine": "1,2-diacyl-sn-glycero-3-phosphoethanolamine",
    "phosphatidylserine": "1,2-diacyl-sn-glycero-3-phospho-L-serine",
    "phosphatidylglycerol": "1,2-diacyl-sn-glycero-3-phosphoglycerol",
    "lysophosphatidylcholine": "1-acyl-sn-glycero-3-phosphocholine",
    "phosphatidic acid": "1,2-diacyl-sn-glycerol 3-phosphate",
    "ceramide": "N-acylsphingosine",
    "dihydroceramide": "N-acylsphinganine",
    "1,3-diglyceride": "1,3-diacylglycerol",
    "1,2-diglyceride": "1,2-diacylglycerol",
    "triglyceride": "1,2,3-triacylglycerol",
}
CHARGE = re.compile(r"\(\d*[+-]\)$|\s(?:zwitterion|anion|cation|dianion)$")

LINKED = re.compile(
    r"(?:consisting of|composed of|comprising|of) (?P<units>(?:an? )?[^.]*?ose\b.*?)(?: residues)? "
    r"(?:all )?(?:joined|linked|in a linear)(?P<links>[^.]+)"
)
LINK = re.compile(r"\((?:alpha|beta)?-?(\d+->\d+)\)")

ENES = ("", "di", "tri", "tetra", "penta", "hexa", "hepta", "octa")
BARE_STEREO = re.compile(r"(?<![\w(',])((?:\d+[EZ],)*\d+[EZ])-")
ALL_SIDES = re.compile(
    r"all-(cis|trans)-(?:(\d[\d,]*)-([a-z]+a)|([a-z]+a)-(\d[\d,]*)-)(?=(?:di|tri|tetra|penta|hexa)en)"
)
UNPLACED = re.compile(rf"(?<=[a-z])(?:a({'|'.join(ENES[1:])}))?en(?=o(?:ic|yl|ate)|al\b)")


def spell(sentence: str) -> Iterator[str]:
    """Names for the molecule that a definition spells out, the likelier ones first.

    >>> list(spell("The molecule is an alcohol that is octane substituted by a hydroxy group at position 3"))
    ['3-hydroxy-octane']
    """
    stereo = STEREO.search(sentence)
    hands = re.findall(r"\d+'*(?:alpha|beta|[RSEZ])", stereo[1]) if stereo is not None else []
    for start, groups in find_changes(sentence):
        if groups and (prefix := write_prefix(groups, hands)):
            yield from (prefix + parent for parent in list_parents(sentence[:start]))
    yield from spell_acylated(SYNONYM.sub("", sentence))
    yield from spell_chain(sentence)


def find_changes(sentence: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Where the name of a parent ends, and the groups that it gets, with their places."""
    for pattern in CHANGES:
        for match in pattern.finditer(sentence):
            yield match.start(), pair(match["places"], match["groups"])
    for match in ON_ATOM.finditer(sentence):
        words = set(re.split(r"[ -]", match["what"].replace("nitrogens", "nitrogen")))
        for atom, kinds in ATOMS.items():
            if words & set(kinds.split()):
                yield match.start(), pair(atom, match["groups"])
    for match in CARRYING.finditer(sentence):
        groups, reached = list[tuple[str, str]](), 0
        while (carried := CARRIED.match(match["rest"], reached)) is not None:
            groups, reached = groups + pair(carried["places"], carried["groups"]), carried.end()
        yield match.start(), groups


def pair(places: str, groups: str) -> list[tuple[str, str]]:
    """Every place with its group: one group at all places, or as many of both; else none.

    >>> pair("2 and 8", "additional fluoro and methyl substituents"), pair("6", "two methyl groups")
    ([('2', 'fluoro'), ('8', 'methyl')], [('6', 'methyl'), ('6', 'methyl')])
    """
    at, names, times = [place.removeprefix("C-") for place in re.split(AND, places)], [], 1
    for part in filter(None, re.split(r",? and |, ", groups)):
        words = re.sub(rf"(?:{GROUP})$", "", part).split(" ")
        while words and words[0] in ("a", "an", "additional", "further", "the", *TIMES):
            times = TIMES.get(words.pop(0), 1)
        names.append(" ".join(words))
    names = [SYNONYMS.get(name, name) for name in names]
    if any(" " in name or not name for name in names):
        return []
    if len(names) == 1:
        return [(place, names[0]) for place in (at * times if len(at) == 1 else at)]
    return list(zip(at, names, strict=True)) if len(names) == len(at) else []


def write_prefix(groups: Iterable[tuple[str, str]], hands: Iterable[str]) -> str | None:
    """The prefix for groups with their places. ``hands`` are places with their stereochemistry.

    >>> write_prefix([("2", "chloro"), ("4", "chloro"), ("17", "hydroxy")], ["17beta", "5alpha"])
    '2,4-dichloro-17beta-hydroxy-5alpha-'
    >>> write_prefix([("3", "alpha-hydroxy"), ("15R", "2-oxononyl")], [])
    '(15R)-3alpha-hydroxy-15-(2-oxononyl)-'
    """
    sides = {re.sub("alpha|beta", "", hand): hand for hand in hands if hand.endswith("a")}
    centres, places = [hand for hand in hands if not hand.endswith("a")], dict[str, list[str]]()
    for place, group in groups:
        if (side := re.match(r"(alpha|beta)-(?=[a-z]+$)", group)) is not None:
            place, group = place + side[1], group[side.end() :]
        if re.fullmatch(r"\d+'*[RSEZ]", place):
            centres.append(place)
            place = place[:-1]
        places.setdefault(group, []).append(sides.pop(place, place))
    if max(map(len, places.values())) >= len(SIMPLE):
        return None
    parts = [f"({','.join(centres)})"] * bool(centres)
    for group, at in places.items():
        name = SIMPLE[len(at)] + group if group.isalpha() else f"{COMPLEX[len(at)]}({group})"
        parts.append(f"{','.join(at)}-{name}")
    return "-".join([*parts, *sides.values(), ""])


def list_parents(before: str) -> Iterator[str]:
    """Names of one or more words that may end where a text ends, long ones first.

    >>> list(list_parents("The molecule is a dicarboxylic acid that is adipic acid"))
    ['adipic acid', 'acid']
    """
    words = NO_PARENT.sub("", before).split()
    return (CHARGE.sub("", " ".join(words[start:])) for start in range(len(words)))


def spell_acylated(sentence: str) -> Iterator[str]:
    """Lipids and other acylated molecules, by the name of their class and the acyl groups.

    >>> list(spell_acylated("a phosphatidylcholine 34:0 in which the acyl groups are hexadecanoyl and octadecanoyl"))
    ['1-hexadecanoyl-2-octadecanoyl-sn-glycero-3-phosphocholine']
    """
    known = [(match.start(), name, own) for name, own in LIPIDS.items() if (match := re.search(rf"\b{name}", sentence))]
    found = [(match.start(), match["class"], match["class"]) for match in ACYLATED.finditer(sentence)]
    for start, name, own in (*known, *found):
        groups = [group for group in ACYL.findall(sentence[start + len(name) :]) if "acyl" not in group]
        groups = [group if group.isalpha() else f"[{group}]" for group in groups]
        places = re.search(r"(\d),(\d)(?:,(\d))?-(?:di|tri)acyl", own)
        if places is None and len(groups) == 1 and "diacyl" not in own and own != "acyl":
            yield CHARGE.sub("", own).replace("acyl", groups[0], 1)
        elif places is not None and groups:
            at = [place for place in places.groups() if place]
            groups = groups * len(at) if len(groups) == 1 else groups
            if len(groups) == len(at):
                text = "-".join(f"{place}-{group}" for place, group in zip(at, groups, strict=True))
                yield CHARGE.sub("", own).replace(places[0], text)


def spell_chain(sentence: str) -> Iterator[str]:
    """Linear oligosaccharides, by their sugars and how these are linked.

    >>> list(spell_chain("a disaccharide consisting of beta-D-galactose and D-glucose joined by a (1->4) bond"))
    ['beta-D-galactosyl-(1->4)-D-glucose']
    """
    for match in LINKED.finditer(sentence):
        sugars, links = list[str](), LINK.findall(match["links"])
        for part in filter(None, re.split(r",? and |, ", match["units"])):
            words = re.sub(r"^an? |,$| (?:residue|unit)s?,?$", "", part).split(" ")
            sugars += [words[-1].removesuffix("s")] * TIMES.get(words[0], 1)
        links = links * (len(sugars) - 1) if len(links) == 1 else links
        if len(sugars) > 1 and len(links) == len(sugars) - 1:
            glycosyls = (re.sub(r"ose$", "osyl", re.sub(r"amine$", "aminyl", sugar)) for sugar in sugars)
            chain = "".join(f"{glycosyl}-({link})-" for glycosyl, link in zip(glycosyls, links, strict=False))
            yield chain + sugars[-1]


def complete(name: str) -> str:
    """Add what ChEBI leaves out of the names of unsaturated chains: the places of the double bonds.

    >>> complete("(9Z,12Z)-octadecadienoyl-CoA"), complete("11Z-eicosenoic acid"), complete("all-cis-5,8-icosadienoate")
    ('(9Z,12Z)-octadeca-9,12-dienoyl-CoA', '(11Z)-icos-11-enoic acid', '(5Z,8Z)-icosa-5,8-dienoate')
    """
    name = ALL_SIDES.sub(_place_all, BARE_STEREO.sub(r"(\1)-", re.sub(r"\beicos", "icos", name)))
    for match in reversed(list(UNPLACED.finditer(name))):
        before, count = name[: match.start()], match[1] or ""
        places = re.findall(r"(\d+)[EZ](?=[,)])", before[before.rfind("(") :]) if "(" in before else []
        if len(places) == 1 + ENES.index(count):
            name = f"{before}{'a' * (count != '')}-{','.join(places)}-{count}en{name[match.end() :]}"
    return name


def _place_all(match: re.Match[str]) -> str:
    side, places = "Z" if match[1] == "cis" else "E", match[2] or match[5]
    return f"({','.join(place + side for place in places.split(','))})-{match[3] or match[4]}-{places}-"

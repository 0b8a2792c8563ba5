"""What can be asked for by name, ``wl:iterations=3``: kernels, networks and decoders, and what is taken by default."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dsokr import decoders, kernels, losses, networks
from dsokr.decoders import Decoder
from dsokr.errors import InputError
from dsokr.kernels import Kernel
from dsokr.regressors.networks import NetworkFactory
from dsokr.outputs import Outputs, take
from dsokr.commands.kinds import Kind, Labels, Letters, Molecule, OutputKind, Ranking, String, Vector, closest
from dsokr.regressors.training import Training
from dsokr.graphs import Graph

SEARCHED_ATOMS = 12  # molecules up to this size are searched for; larger ones are picked from a list
SEARCHED_LETTERS = 40  # strings, likewise
VALENCES = {5: 3, 6: 4, 7: 3, 8: 2, 9: 1, 14: 4, 15: 5, 16: 6, 17: 1, 35: 1, 53: 1}
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
DECODERS = ("auto", "candidates", "search")


@dataclass(frozen=True)
class Choice:
    """Something with a name: one line on it, its parameters with their defaults, and how it is made."""

    what: str
    make: Callable[..., Any]
    parameters: Mapping[str, Any]


def gamma_of(ys: Outputs, gamma: str | float, power: int) -> float:
    """One over the median distance between the outputs (to that power), if it is left open."""
    if gamma != "auto":
        return float(gamma)
    some = np.asarray(take(ys, slice(1000)), dtype=np.float64)
    distances = (np.abs(a - b) ** power for a, b in pairwise(some[np.random.default_rng(0).permutation(len(some))]))
    typical = float(np.median([distance.sum() for distance in distances] or [1.0]))
    return 1 / typical if typical > 0 else 1.0


def _gaussian(ys: Outputs, gamma: str | float) -> Kernel:
    return kernels.Gaussian(gamma_of(ys, gamma, 2))


def _laplacian(ys: Outputs, gamma: str | float) -> Kernel:
    return kernels.Laplacian(gamma_of(ys, gamma, 1))


LINEAR = Choice("plain regression: the square of the error", lambda ys: kernels.Linear(), {})
COSINE = Choice("the angle between vectors", lambda ys: kernels.Cosine(), {})
GAUSSIAN = Choice("near outputs are alike, all far ones equally unlike", _gaussian, {"gamma": "auto"})
TANIMOTO = Choice("what is shared over what either has", lambda ys: kernels.Tanimoto(), {})
FINGERPRINT = {"radius": 3, "chirality": True}

KERNELS: Mapping[type[OutputKind], Mapping[str, Choice]] = {
    Vector: {
        "linear": LINEAR,
        "gaussian": GAUSSIAN,
        "laplacian": Choice("as gaussian, with sharper peaks", _laplacian, {"gamma": "auto"}),
        "polynomial": Choice(
            "products of coordinates", lambda ys, degree, offset: kernels.Polynomial(degree, offset),
            {"degree": 2, "offset": 1.0},
        ),
        "cosine": COSINE,
    },
    Labels: {"tanimoto": TANIMOTO, "linear": LINEAR, "gaussian": GAUSSIAN},
    Ranking: {
        "kemeny": Choice("pairs in the same order; takes ties and missing items", lambda ys: kernels.Kemeny(), {}),
        "hamming": Choice("items in the same place", lambda ys: kernels.Hamming(), {}),
        "lehmer": Choice("the Lehmer code of the order", lambda ys: kernels.Lehmer(), {}),
    },
    String: {
        "ngram": Choice(
            "shared strings of up to n letters",
            lambda ys, n: kernels.NGram(tuple(range(1, n + 1)) or n), {"n": 3},
        ),
        "gappy": Choice(
            "shared strings of n letters with gaps between",
            lambda ys, n, gaps, decay: (kernels.NGram(1) + kernels.GappyNGram(n, gaps, decay)).normalized(),
            {"n": 2, "gaps": 2, "decay": 0.5},
        ),
    },
    Molecule: {
        "morgan": Choice("shared circular neighbourhoods, with their counts", TANIMOTO.make, FINGERPRINT),
        "tanimoto": Choice("shared circular neighbourhoods, present or not", TANIMOTO.make, FINGERPRINT),
        "wl": Choice(
            "Weisfeiler-Lehman: shared neighbourhoods of the graph",
            lambda ys, iterations, bonds: kernels.WeisfeilerLehman(iterations, edge_labels=bonds).normalized(),
            {"iterations": 3, "bonds": True},
        ),
        "shortest-path": Choice(
            "shared atoms, and pairs of atoms at the same distance",
            lambda ys: (kernels.VertexHistogram() + kernels.ShortestPath()).normalized(), {},
        ),
        "nspd": Choice(
            "shared pairs of neighbourhoods at the same distance",
            lambda ys, radius, distance: kernels.NSPD(radius, distance).normalized(), {"radius": 1, "distance": 3},
        ),
    },
}  # fmt: skip
FORMS = {"morgan": "counts", "tanimoto": "bits"}  # of molecules; other kernels take graphs


def _encoder(folder: str) -> NetworkFactory:
    """A folder is named in full: a saved model looks for it again, from wherever it is asked."""
    return networks.TextEncoder(str(Path(folder).resolve()) if Path(folder).is_dir() else folder, rate=0.1)


NETWORKS: Mapping[str, Mapping[str, Choice]] = {
    "vector": {
        "mlp": Choice("fully connected layers", networks.MLP, {"hidden": (256, 256), "dropout": 0.0}),
        "linear": Choice("a linear model", lambda: networks.MLP(()), {}),
    },
    "text": {
        "words": Choice(
            "hashed words and pairs of words, then layers",
            networks.WordBag,
            {"width": 256, "hidden": (512,), "dropout": 0.1, "buckets": 1 << 14},
        ),
        "encoder": Choice("a pre-trained text encoder", _encoder, {"folder": ""}),
    },
    "string": {
        "transformer": Choice(
            "a Transformer over letters",
            networks.CharTransformer,
            {"layers": 3, "width": 128, "heads": 4, "dropout": 0.1},
        ),
    },
    "image": {
        "cnn": Choice(
            "a small convolutional network", networks.CNN, {"channels": (16, 32, 64), "hidden": 256, "dropout": 0.0}
        ),
    },
}


def named(text: str, table: Mapping[str, Choice], what: str, of: str = "") -> tuple[str, dict[str, Any]]:
    """A name and its parameters, ``wl:iterations=2``; those that are not given have their defaults.

    >>> named("gaussian:gamma=0.5", KERNELS[Vector], "kernel")
    ('gaussian', {'gamma': 0.5})
    """
    name, _, rest = text.strip().partition(":")
    if name not in table:
        raise InputError(f"There is no {what} {name!r}{of}.{closest(name, list(table))} Choose from {_names(table)}.")
    parameters = dict(table[name].parameters)
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in parameters:
            known = f"It has {_names(parameters)}." if parameters else "It has none."
            raise InputError(f"The {what} {name} has no parameter {key!r}.{closest(key, list(parameters))} {known}")
        if not equals or not value:
            raise InputError(f"A parameter is written {key}=value. Got {part!r}.")
        parameters[key] = _value(value, parameters[key], f"{name}:{key}")
    return name, parameters


def written(name: str, parameters: Mapping[str, Any]) -> str:
    """The text that :func:`named` reads."""
    parts = ",".join(f"{key}={_written(value)}" for key, value in parameters.items())
    return f"{name}:{parts}" if parts else name


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str, default: Any, what: str) -> Any:
    """The text as a value of the default's type."""
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split("x"))
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float) or (default == "auto" and text != "auto"):
            number = float(text)
            if not math.isfinite(number):
                raise ValueError(text)
            return number
    except (ValueError, KeyError):
        kind = {bool: "true or false", tuple: "whole numbers with x between, 256x256", int: "a whole number"}
        raise InputError(f"{what} must be {kind.get(type(default), 'a finite number')}. Got {text!r}.") from None
    return text


def for_kernel(kind: OutputKind, name: str, parameters: Mapping[str, Any]) -> OutputKind:
    """The kind, with outputs in the form that the kernel takes."""
    if isinstance(kind, Ranking):
        return replace(kind, full=name != "kemeny")
    if isinstance(kind, Molecule):
        own = {key: parameters[key] for key in FINGERPRINT} if name in FORMS else {}
        if own.get("radius", 0) < 0:
            raise InputError(f"--kernel {written(name, parameters)}: the radius must be at least 0.")
        return replace(kind, form=FORMS.get(name, "graph"), **own)
    return kind


def kernel(kind: OutputKind, name: str, parameters: Mapping[str, Any], ys: Outputs) -> Kernel:
    own = FINGERPRINT if isinstance(kind, Molecule) and name in FORMS else ()
    given = {key: value for key, value in parameters.items() if key not in own}
    with _asked_for("--kernel", name, parameters):
        return KERNELS[type(kind)][name].make(ys, **given)


@contextmanager
def _asked_for(option: str, name: str, parameters: Mapping[str, Any]) -> Iterator[None]:
    """What is wrong with something that was asked for is said of the option."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option} {written(name, parameters)}: {error}") from error


def networks_of(kind: Kind) -> Mapping[str, Choice]:
    return NETWORKS["string" if isinstance(kind, Letters) else kind.name]


def network(kind: Kind, name: str, parameters: Mapping[str, Any]) -> NetworkFactory:
    given = dict(parameters)
    if isinstance(kind, Letters):
        given["longest"] = kind.longest
    if name == "encoder" and not given["folder"]:
        raise InputError("The network encoder needs the folder or name of a text encoder: --encoder FOLDER_OR_NAME.")
    if name == "encoder":
        check_encoder(given["folder"])
    with _asked_for("--network", name, parameters):
        return networks_of(kind)[name].make(**given)


def check_encoder(name: str) -> None:
    """That this is a folder with an encoder in it, or may be a name on the hub, which is not asked."""
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"{name} is no folder of a text encoder: config.json is missing.")
    if not folder.is_dir() and (not HUB_NAME.fullmatch(name) or folder.parent.is_dir()):
        raise InputError(f"{name} is no folder of a text encoder, nor a name on the hub, organisation/model.")


def decoder(text: str, kind: OutputKind, kernel: Kernel, ys: Outputs) -> Decoder:
    """How answers are found: in the list of training outputs (candidates), or among all there can be (search)."""
    if text not in DECODERS:
        raise InputError(f"There is no decoder {text!r}.{closest(text, DECODERS)} Choose from {', '.join(DECODERS)}.")
    if text == "candidates":
        return decoders.Candidates()
    found = searching(kind, kernel, ys)
    if text == "search" and found is None:
        raise InputError(
            f"With the kernel {kernel} there is no search of all outputs. "
            "Take the decoder candidates, or another kernel."
        )
    if found is None or (text == "auto" and not _is_small(ys)):
        return decoders.Candidates()
    return found


def searching(kind: OutputKind, kernel: Kernel, ys: Outputs) -> Decoder | None:
    """The decoder over all outputs of this kind, if the kernel has one."""
    decoder: Decoder | None = None
    match kind:
        case Vector():
            decoder = decoders.Gradient()
        case Labels():
            decoder = decoders.LabelSet()
        case Ranking():
            by_kernel: dict[type, Decoder] = {
                kernels.Kemeny: decoders.Kemeny(),
                kernels.Hamming: decoders.HammingRanking(),
                kernels.Lehmer: decoders.Lehmer(),
            }
            decoder = by_kernel.get(type(kernel))
        case String():
            decoder = decoders.NGram()
        case Molecule(form="graph"):
            decoder = decoders.GraphSearch(_molecules(ys))
    try:
        if decoder is not None:
            decoder.check(kernel)
    except InputError:
        return None
    return decoder


def _is_small(ys: Outputs) -> bool:
    """Whether a search among all outputs is quick and sure enough to be the default."""
    if isinstance(ys, list) and isinstance(ys[0], Graph):
        return max(len(graph.labels) for graph in ys) <= SEARCHED_ATOMS
    if isinstance(ys, list):
        return max(map(len, ys)) <= SEARCHED_LETTERS
    return True


def _molecules(graphs: Sequence[Graph]) -> decoders.Molecules:
    """The molecules made of the elements that occur, no larger than the largest."""
    elements: dict[int, int] = {}
    for graph in graphs:
        bonds = [0] * len(graph.labels)
        for i, j, order in graph.edges:
            bonds[i] += order
            bonds[j] += order
        for label, order in zip(graph.labels, bonds, strict=True):
            elements[label] = max(elements.get(label, 1), order)
    valences = tuple((element, VALENCES.get(element, most)) for element, most in sorted(elements.items()))
    return decoders.Molecules(valences, max_atoms=max(len(graph.labels) for graph in graphs))


def training(kind: Kind, network_name: str, n: int) -> Training:
    """Defaults that suit the network and the number of pairs."""
    batch_size = int(np.clip(2 ** round(np.log2(max(n, 1) / 20)), 8, 128))
    plain = Training(epochs=100, batch_size=batch_size)
    if isinstance(kind, Letters):
        warm = {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "gradient_clip": 1.0}
        return replace(plain, learning_rate=1e-3, warmup_steps=min(200, 5 * -(-n // batch_size)), **warm)  # type: ignore[arg-type]
    if network_name == "words":
        return replace(plain, learning_rate=3e-3)
    if network_name == "encoder":
        fine = {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "gradient_clip": 1.0}
        warmup = min(200, -(-n // batch_size))
        return replace(plain, epochs=20, batch_size=batch_size, learning_rate=1e-3, warmup_steps=warmup, **fine)  # type: ignore[arg-type]
    return plain


def loss(kind: OutputKind, decoder: Decoder) -> losses.Loss:
    """For molecules that are picked from a list, their rank counts as well as their distance."""
    return (
        losses.Ranked() if isinstance(kind, Molecule) and isinstance(decoder, decoders.Candidates) else losses.Squared()
    )


def sizes(n: int) -> list[int]:
    """Sketch sizes to choose from: doubling, up to all outputs and at most 1,024."""
    return sorted({*(2**i for i in range(3, 11) if 2**i < n), min(n, 1024)})


def _names(names: Any) -> str:
    return ", ".join(names)

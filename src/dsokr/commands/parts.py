"""The parts of a model: those that options name, as expressions, and those that suit the data by default."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dsokr import decoders, kernels, losses, networks, sketches
from dsokr.commands.cells import suggest
from dsokr.commands.columns import Kind, Letters, Molecule, OutputKind
from dsokr.commands.options import FitOptions
from dsokr.decoders import Candidates, Decoder
from dsokr.errors import InputError
from dsokr.estimator import DSOKR
from dsokr.graphs import Graph
from dsokr.kernels import Kernel
from dsokr.outputs import count
from dsokr.regressors import Neural, Training
from dsokr.saving import parse_expression

SEARCHED_ATOMS, SEARCHED_LETTERS = 12, 40  # larger outputs are picked from a list unless a search is wanted
VALENCES = {5: 3, 6: 4, 7: 3, 8: 2, 9: 1, 14: 4, 15: 5, 16: 6, 17: 1, 35: 1, 53: 1}
SEARCHES = dict(vector=decoders.Gradient(), labels=decoders.LabelSet(), string=decoders.NGram())
RANKINGS = dict(Kemeny=decoders.Kemeny(), Hamming=decoders.HammingRanking(), Lehmer=decoders.Lehmer())  # by kernel
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
NETWORKS: dict[str, tuple[Any, ...]] = {  # what reads each kind of inputs, the default first
    "vector": (networks.MLP((256, 256)),),
    "text": (networks.WordBag(width=256), networks.TextEncoder("")),
    **dict.fromkeys(("string", "smiles"), (networks.CharTransformer(layers=3, width=128, heads=4, dropout=0.1),)),
    "image": (networks.CNN(channels=(16, 32, 64), hidden=256),),
}


def parse_part(text: str, module: ModuleType, option: str) -> Any:
    """Make the part that an option names, ``Gaussian(0.5)``; empty parentheses may be left out."""
    try:
        return parse_expression(f"{text}()" if text.isidentifier() else text, module)
    except InputError as error:
        raise InputError(f"{option} {error}") from error


def parse_kernel(text: str, ys: Any = None) -> Kernel:
    """Make a kernel; the gamma of ``Gaussian(auto)`` is one over the median distance between the outputs."""

    def insert_gamma(match: re.Match[str]) -> str:
        gamma = 1.0 if ys is None else find_gamma(ys, power=2 if match[1] == "Gaussian" else 1)
        return f"{match[1]}({gamma!r})"

    return parse_part(re.sub(r"\b(Gaussian|Laplacian)\(auto\)", insert_gamma, text), kernels, "--kernel")


def find_gamma(ys: Any, power: int) -> float:
    """Return one over the median of the distances between some of the outputs, to that power."""
    if not isinstance(ys, np.ndarray):
        raise InputError("--kernel: auto is for vectors and labels. Write a number in its place.")
    some = ys[:1000].astype(np.float64)[np.random.default_rng(0).permutation(min(1000, len(ys)))]
    typical = float(np.median([(np.abs(a - b) ** power).sum() for a, b in pairwise(some)] or [1.0]))
    return 1 / typical if typical > 0 else 1.0


def check_encoder(options: FitOptions) -> None:
    """Check that an encoder is a folder with one, or may be a name on the hub; the hub is not asked."""
    name, folder = options.encoder, Path(options.encoder)
    if name and options.network != "auto":
        raise InputError(f"--encoder is a network itself. Got --network {options.network} beside it.")
    is_name = HUB_NAME.fullmatch(name) and not folder.parent.is_dir()
    if name and not (folder / "config.json").is_file() and (folder.is_dir() or not is_name):
        raise InputError(f"{name} is neither the folder of a text encoder nor a name on the hub, organisation/model.")


def choose_network(options: FitOptions, input: Kind) -> Any:
    """Make the network that reads the inputs."""
    choices = NETWORKS[input.name]
    network: Any
    if options.encoder:
        folder = Path(options.encoder)
        network = networks.TextEncoder(str(folder.resolve()) if folder.is_dir() else options.encoder, rate=0.1)
    else:
        network = choices[0] if options.network == "auto" else parse_part(options.network, networks, "--network")
    if type(network) not in map(type, choices):
        names = " or ".join(type(choice).__name__ for choice in choices)
        raise InputError(f"{type(network).__name__} does not read {input.name} inputs. Use {names}.")
    return replace(network, longest=input.longest) if isinstance(input, Letters) else network


def choose_decoder(text: str, output: OutputKind, kernel: Kernel, ys: Any) -> Decoder:
    """Make the decoder: ``candidates`` of a list, a ``search`` of all outputs, ``auto``, or an expression."""
    if text not in ("auto", "candidates", "search"):
        hint = suggest(text, ("candidates", "search"))
        return parse_part(text, decoders, f"--decoder takes auto, candidates, search or an expression.{hint}")
    search = _find_search(output, kernel, ys)
    if text == "search" and search is None:
        raise InputError(f"There is no search of all outputs with the kernel {kernel}. Use --decoder candidates.")
    return search if search is not None and (text == "search" or (text == "auto" and _is_small(ys))) else Candidates()


def _find_search(output: OutputKind, kernel: Kernel, ys: Any) -> Decoder | None:
    """Return the decoder over all outputs of a kind, if there is one for the kernel."""
    found: Any = SEARCHES.get(output.name) or RANKINGS.get(type(kernel).__name__)
    if isinstance(output, Molecule) and output.as_graph:
        found = decoders.GraphSearch(_find_domain(ys))
    try:
        if found is not None:
            found.check(kernel)
    except InputError:
        return None
    return found


def _find_domain(graphs: list[Graph]) -> decoders.Molecules:
    """Return the molecules of the elements that occur, no larger than the largest."""
    elements: dict[int, int] = {}
    for graph in graphs:
        for place, element in enumerate(graph.labels):
            bonds = sum(order for i, j, order in graph.edges if place in (i, j))
            elements[element] = max(elements.get(element, 1), bonds)
    valences = tuple((element, VALENCES.get(element, most)) for element, most in sorted(elements.items()))
    return decoders.Molecules(valences, max(len(graph.labels) for graph in graphs))


def _is_small(ys: Any) -> bool:
    """Whether a search is quick and reliable enough to be the default."""
    if isinstance(ys, list) and isinstance(ys[0], Graph):
        return max(len(graph.labels) for graph in ys) <= SEARCHED_ATOMS
    return not isinstance(ys, list) or max(map(len, ys)) <= SEARCHED_LETTERS


def choose_training(options: FitOptions, network: Any, n: int) -> Training:
    """Return settings that suit the network and the number of pairs, unless the user chose others."""
    batch_size = int(np.clip(2 ** round(np.log2(n / 20)), 8, 128))
    chosen: dict[str, Any] = {"batch_size": batch_size}
    if isinstance(network, networks.WordBag):
        chosen["learning_rate"] = 3e-3
    elif isinstance(network, networks.CharTransformer | networks.TextEncoder):
        chosen |= {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "gradient_clip": 1.0}
        is_pretrained, epoch = isinstance(network, networks.TextEncoder), -(-n // batch_size)
        chosen["warmup_steps"] = min(200, epoch if is_pretrained else 5 * epoch)
        chosen |= {"epochs": 20} if is_pretrained else {}
    given = {name: getattr(options, name) for name in ("epochs", "batch_size", "learning_rate", "patience")}
    chosen |= {name: value for name, value in given.items() if value is not None}
    return Training(**chosen, validation_fraction=0.0)


def make_model(
    options: FitOptions, network: Any, output: OutputKind, kernel: Kernel, ys: Any, validates: bool
) -> DSOKR:
    """Put the parts together; the size of the sketch is chosen later."""
    decoder, training = (
        choose_decoder(options.decoder, output, kernel, ys),
        choose_training(options, network, count(ys)),
    )
    loss: losses.Loss = losses.Squared()
    if isinstance(output, Molecule) and isinstance(decoder, Candidates):  # their rank counts as well as their distance
        loss, training = losses.Ranked(), replace(training, monitor="mrr" if validates else "loss")
    device, seed = options.device, options.seed
    regressor = Neural(network, loss, training)
    return DSOKR(kernel, sketches.Full(), regressor, decoder=decoder, random_state=seed, device=device)

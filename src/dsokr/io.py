"""Models on disk: a folder with JSON, safetensors and a model card. Nothing is pickled; loading runs no stored code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dsokr import __version__
from dsokr.errors import InputError, ModelFolderError
from dsokr.graphs import GraphBatch
from dsokr.outputs import Outputs, ViewBatch
from dsokr.types import Graph

FORMAT = 1  # of the folder; raised when older versions of the package could not read it
FAMILIES = ("kernels", "sketches", "losses", "networks", "decoders", "training")  # whose parts can be written down
FILES = {
    *("config.json", "model.safetensors", "README.md", "network"),
    *("task.json", "candidates.csv", "report.html", "skipped.csv"),  # beside a model made by `dsokr fit`
}
NOT_WRITTEN = "not written"

Tensors = dict[str, Tensor]


def describe(part: Any) -> Any:
    """A part of a model (a frozen dataclass of this package, with numbers, words and other parts inside) as JSON.

    >>> from dsokr import kernels
    >>> describe(2.0 * kernels.Gaussian(0.5))
    {'kernels.Scaled': {'kernel': {'kernels.Gaussian': {'gamma': 0.5}}, 'factor': 2.0}}
    """
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, np.generic):
        return part.item()
    if isinstance(part, np.ndarray | Tensor):
        return part.tolist()
    if isinstance(part, list | tuple):
        return [describe(item) for item in part]
    if isinstance(part, Mapping):
        described = {str(key): describe(value) for key, value in part.items()}
        return {"mapping": {key: value for key, value in described.items() if not is_unwritten(value)}}
    name = _public_name(type(part))
    if name is None:
        return {NOT_WRITTEN: repr(part)}
    fields = {field.name: field for field in dataclasses.fields(part) if field.init and field.compare}
    described = {name: describe(getattr(part, name)) for name in fields}
    if any(is_unwritten(value) and _is_required(fields[field]) for field, value in described.items()):
        return {NOT_WRITTEN: repr(part)}  # a part cannot be made again without one of its own parts
    return {name: described}


def construct(description: Any) -> Any:
    """The part that :func:`describe` wrote down. What could not be written comes back as its default.

    >>> construct({'kernels.Gaussian': {'gamma': 0.5}})
    Gaussian(gamma=0.5)
    """
    if isinstance(description, list):
        return tuple(construct(item) for item in description)
    if not isinstance(description, dict):
        return description
    name, content = next(iter(description.items()), ("", None))
    if len(description) != 1 or not isinstance(content, dict):
        raise ModelFolderError(f"config.json is damaged: {description} is no part of a model.")
    if name == "mapping":
        return {key: construct(value) for key, value in content.items()}
    fields = {key: construct(value) for key, value in content.items() if not is_unwritten(value)}
    return _class(name)(**fields)


def is_unwritten(description: Any) -> bool:
    """Whether this stands for something that JSON cannot hold: a function, or a class of somebody else's."""
    if isinstance(description, list):
        return any(map(is_unwritten, description))
    return isinstance(description, dict) and NOT_WRITTEN in description


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _public_name(kind: type) -> str | None:
    package, _, inner = kind.__module__.partition(".")
    family = inner.partition(".")[0]
    known = package == "dsokr" and family in FAMILIES and dataclasses.is_dataclass(kind)
    return f"{family}.{kind.__name__}" if known else None


def _class(name: str) -> Any:
    family, _, kind = name.partition(".")
    if family in FAMILIES:
        found = getattr(import_module(f"dsokr.{family}"), kind, None)
        if dataclasses.is_dataclass(found):
            return found
    raise ModelFolderError(f"The model uses {name}, which dsokr {__version__} does not have.")


def pack_outputs(ys: Outputs, prefix: str, tensors: Tensors) -> dict[str, Any]:
    """Put a collection of outputs among the tensors and return what is needed to get it back in the same form."""
    if isinstance(ys, Tensor):
        tensors[prefix] = ys
        return {"kind": "tensor"}
    if sp.issparse(ys):
        for name in ("data", "indices", "indptr"):
            tensors[f"{prefix}.{name}"] = torch.from_numpy(getattr(ys, name))
        return {"kind": "sparse", "shape": list(ys.shape), "matrix": isinstance(ys, sp.spmatrix)}
    if isinstance(ys, np.ndarray) and ys.dtype.kind in "fiub":
        tensors[prefix] = torch.from_numpy(np.ascontiguousarray(ys))
        return {"kind": "array"}
    if isinstance(ys, GraphBatch):
        return {"kind": "graph batch", "items": _pack_list(list(ys), prefix, tensors)}
    if isinstance(ys, ViewBatch):
        return {
            "kind": "view batch",
            "views": [pack_outputs(view, f"{prefix}.{i}", tensors) for i, view in enumerate(ys.views)],
        }
    if isinstance(ys, np.ndarray):
        return {"kind": "array of objects", "dtype": ys.dtype.str, "items": pack_outputs(ys.tolist(), prefix, tensors)}
    return _pack_list(list(ys), prefix, tensors)


def _pack_list(items: list[Any], prefix: str, tensors: Tensors) -> dict[str, Any]:
    first = items[0]
    if isinstance(first, Graph):
        tensors[f"{prefix}.sizes"] = torch.tensor([[len(g.labels), len(g.edges)] for g in items], dtype=torch.long)
        tensors[f"{prefix}.labels"] = torch.tensor([label for g in items for label in g.labels], dtype=torch.long)
        edges = torch.tensor([edge for g in items for edge in g.edges], dtype=torch.long)
        tensors[f"{prefix}.edges"] = edges.reshape(-1, 3)
        return {"kind": "graphs"}
    if isinstance(first, tuple):
        views = [pack_outputs(list(view), f"{prefix}.{i}", tensors) for i, view in enumerate(zip(*items, strict=True))]
        return {"kind": "views", "views": views}
    if isinstance(first, np.ndarray | Tensor):
        stack = np.stack if isinstance(first, np.ndarray) else torch.stack
        return {"kind": "list of rows", "rows": pack_outputs(stack(items), prefix, tensors)}
    try:
        text = json.dumps(items, default=_plain_number).encode()
    except TypeError as error:
        raise InputError(f"Outputs of type {type(first).__name__} cannot be saved.") from error
    tensors[prefix] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return {"kind": "json"}


def _plain_number(item: Any) -> Any:
    if isinstance(item, np.generic):
        return item.item()
    raise TypeError(item)


def unpack_outputs(form: dict[str, Any], prefix: str, tensors: Tensors) -> Outputs:
    """The collection that :func:`pack_outputs` put away."""
    match form["kind"]:
        case "tensor":
            return tensors[prefix]
        case "array":
            return tensors[prefix].numpy()
        case "sparse":
            data, indices, indptr = (tensors[f"{prefix}.{name}"].numpy() for name in ("data", "indices", "indptr"))
            kind = sp.csr_matrix if form["matrix"] else sp.csr_array
            return kind((data, indices, indptr), shape=tuple(form["shape"]))
        case "array of objects":
            return np.array(unpack_outputs(form["items"], prefix, tensors), dtype=form["dtype"])
        case "graphs":
            return _unpack_graphs(prefix, tensors)
        case "graph batch":
            return GraphBatch.of(_unpack_graphs(prefix, tensors))
        case "views":
            views = (unpack_outputs(view, f"{prefix}.{i}", tensors) for i, view in enumerate(form["views"]))
            return list(zip(*views, strict=True))
        case "view batch":
            return ViewBatch(*(unpack_outputs(view, f"{prefix}.{i}", tensors) for i, view in enumerate(form["views"])))
        case "list of rows":
            return list(unpack_outputs(form["rows"], prefix, tensors))
        case "json":
            return json.loads(tensors[prefix].numpy().tobytes())
        case other:
            raise ModelFolderError(f"The model holds outputs of an unknown kind, {other!r}.")


def _unpack_graphs(prefix: str, tensors: Tensors) -> list[Graph]:
    nodes, edges = tensors[f"{prefix}.sizes"].T.tolist()
    labels_of = tensors[f"{prefix}.labels"].split(nodes)
    edges_of = tensors[f"{prefix}.edges"].split(edges)
    return [
        Graph(tuple(labels.tolist()), tuple(map(tuple, links.tolist())))
        for labels, links in zip(labels_of, edges_of, strict=True)
    ]


def write_model(
    folder: Path, config: dict[str, Any], tensors: Tensors, card: str, further: Callable[[Path], None]
) -> None:
    """Write the folder whole, or leave what was there. Only a saved model, and nothing else, is ever replaced.

    ``further`` writes more files to the folder that it gets, which is a draft until all are there. A crash between the
    two renames leaves the old model beside the folder, under a name that ends in -old.
    """
    if folder.exists() and not is_replaceable(folder):
        raise ModelFolderError(f"{folder} exists and is not a saved model. Choose another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        draft.chmod(0o755)  # mkdtemp's own choice is private
        weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(weights, str(draft / "model.safetensors"))
        head = {"format": FORMAT, "dsokr": __version__, "sha256": _checksum(draft / "model.safetensors")}
        (draft / "config.json").write_text(json.dumps(head | config, indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(card, encoding="utf-8")
        shutil.copymode(draft / "README.md", draft / "model.safetensors")  # save_file's own choice is private too
        further(draft)
        if folder.exists():
            os.replace(folder, old := draft.with_name(f"{draft.name}-old"))
            os.replace(draft, folder)
            shutil.rmtree(old)
        else:
            os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_replaceable(folder: Path) -> bool:
    """An empty folder, or one that holds a saved model and nothing else."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    if not names:
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return names <= FILES and isinstance(config, dict) and {"format", "dsokr", "sha256"} <= set(config)


def read_model(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """The configuration and the tensors of a saved model, checked."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder} is not a saved model: {name} is missing.")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        written = int(config["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{folder / 'config.json'} is damaged: {error}.") from error
    if written > FORMAT:
        raise ModelFolderError(
            f"{folder} was saved by dsokr {config.get('dsokr')}, which is newer than this one ({__version__}). "
            "Upgrade with: pip install --upgrade dsokr"
        )
    if config.get("sha256") != _checksum(folder / "model.safetensors"):
        raise ModelFolderError(f"{folder / 'model.safetensors'} is damaged or incomplete: its checksum is not right.")
    try:
        return config, load_file(str(folder / "model.safetensors"))
    except SafetensorError as error:
        raise ModelFolderError(f"{folder / 'model.safetensors'} cannot be read: {error}.") from error


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

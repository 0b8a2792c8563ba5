"""Models on disk: a folder with JSON, safetensors and a model card. Nothing is pickled; loading runs no stored code.

Parts of a model (kernels, sketches, networks, decoders) are written as the expression that makes them,
``WeisfeilerLehman(iterations=3).normalized()``, which is also what the command line accepts. Only dataclasses of the
package can be named in one, with literals and each other as arguments.
"""

import ast
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sklearn.base import BaseEstimator
from torch import Tensor

from dsokr import __version__
from dsokr.errors import DSOKRError, InputError, ModelFolderError
from dsokr.files import DRAFT, T, checksum, read_sealed, read_whole, replace_folder, write_json
from dsokr.graphs import Graph, GraphBatch
from dsokr.outputs import Form, ViewBatch, canonical

FORMAT = 4  # of the folder
FILES = {
    *("config.json", "model.safetensors", "README.md", "network"),
    "conformal.safetensors",
    *("task.json", "candidates.csv", "report.html", "skipped.csv"),  # beside a model made by `dsokr fit`
}
TYPES: dict[str, type] = {"own_candidates": bool, "pairs": int, "missed": float}  # in config.json
TYPES |= dict.fromkeys(("sha256", "parts", "parameters", "form", "history", "reader", "inputs"), dict)
FOR_PEOPLE = ("README.md", "report.html", "skipped.csv")  # not read with a model, so that they may be edited
SEALED = ("config.json", "conformal.safetensors")  # which hold their own checksums
CSR = ("data", "indices", "indptr")
LONGEST = 4_000_000  # characters of an expression
FORGOTTEN = ("loss", "monitor", "logger", "trainer", "training", "estimator")  # fields that predictions do not need
HIDDEN = ("Feature", "Normalized", "Product", "Scaled", "Sketch", "Sum")  # prefixes of names that users do not write

Tensors = dict[str, Tensor]


class Unwritten(InputError):
    """A part that no expression can name: a function, or a class of the user's own."""


def write_expression(part: Any, *modules: ModuleType) -> str:
    """Write a part of a model as the expression that makes it, from dataclasses of the modules; defaults are left out.

    >>> from dsokr import kernels
    >>> write_expression(2.0 * kernels.WeisfeilerLehman(3).normalized(), kernels)
    'ScaledFeatures(kernel=NormalizedFeatures(kernel=WeisfeilerLehman(iterations=3)), factor=2.0)'
    """
    if isinstance(part, np.generic | np.ndarray | Tensor):
        part = part.tolist()
    if part is None or isinstance(part, bool | int | float | str):
        return repr(part)
    if isinstance(part, list | tuple):
        items = [write_expression(item, *modules) for item in part]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    if isinstance(part, Mapping):
        texts = {key: _try_to_write(value, *modules) for key, value in part.items()}
        return f"{{{', '.join(f'{key!r}: {text}' for key, text in texts.items() if text is not None)}}}"
    name = type(part).__name__
    qualified = next((f"{_short(m)}.{name}" for m in modules if getattr(m, name, None) is type(part)), None)
    if qualified is None or not dataclasses.is_dataclass(part):
        raise Unwritten(repr(part))
    arguments = []
    for field in dataclasses.fields(part):
        if field.init and field.compare and not _has_default(part, field):
            write = _try_to_write if field.name in FORGOTTEN else write_expression
            if (text := write(getattr(part, field.name), *modules)) is not None:
                arguments.append(f"{field.name}={text}")
    return f"{name if _find(name, modules) is type(part) else qualified}({', '.join(arguments)})"


def _has_default(part: Any, field: dataclasses.Field[Any]) -> bool:
    value = getattr(part, field.name)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return value is default or (type(value) is type(default) and value == default)


def _try_to_write(part: Any, *modules: ModuleType) -> str | None:
    with suppress(Unwritten):
        return write_expression(part, *modules)
    return None


def parse_expression(text: str, *modules: ModuleType) -> Any:
    """Build the part that an expression names. Kernels may be added, multiplied, scaled and normalised.

    >>> from dsokr import kernels
    >>> parse_expression("Gaussian(0.5) + 2 * Linear().normalized()", kernels)
    Sum(kernels=(Gaussian(gamma=0.5), Scaled(kernel=Normalized(kernel=Linear()), factor=2.0)))
    """
    try:
        if len(text) > LONGEST:
            raise InputError("It is too long.")
        return _evaluate(ast.parse(text.strip(), mode="eval").body, modules)
    except (SyntaxError, TypeError, ValueError, OverflowError, RecursionError, MemoryError, AttributeError) as error:
        raise InputError(f"{text!r:.200} cannot be read: {getattr(error, 'msg', error)}") from error


def _evaluate(node: ast.expr, modules: tuple[ModuleType, ...]) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.Name(id="inf" | "nan"):
            return float(node.id)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_evaluate(item, modules) for item in items)
        case ast.Dict(keys=[*keys], values=values) if None not in keys:
            return {_evaluate(key, modules): _evaluate(value, modules) for key, value in zip(keys, values, strict=True)}  # type: ignore[arg-type] # no key is None
        case ast.UnaryOp(op=ast.USub()) if isinstance(number := _evaluate(node.operand, modules), int | float):
            return -number
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as operator, right=right):
            a, b = _evaluate(left, modules), _evaluate(right, modules)
            if all(isinstance(value, int | float | str | tuple | dict | None) for value in (a, b)):
                raise InputError("only kernels can be added or multiplied.")
            return a + b if isinstance(operator, ast.Add) else a * b
        case ast.Call(
            func=ast.Attribute(value=ast.Call() | ast.BinOp() as inner, attr="normalized"), args=[], keywords=[]
        ):
            return _evaluate(inner, modules).normalized()
        case ast.Call(func=ast.Name() | ast.Attribute(value=ast.Name()) as function, args=args, keywords=keywords):
            made, options = _find(ast.unparse(function), modules), {keyword.arg: keyword.value for keyword in keywords}
            if made is None:
                raise InputError(f"there is no {ast.unparse(function)}. Choose from {', '.join(_names(modules[0]))}.")
            if None not in options and len(options) == len(keywords):  # else there is a **, or a keyword twice
                named = {str(name): _evaluate(value, modules) for name, value in options.items()}
                return made(*(_evaluate(arg, modules) for arg in args), **named)
    raise InputError(f"{ast.unparse(node)} is not allowed.")


def _find(name: str, modules: tuple[ModuleType, ...]) -> Any:
    """The dataclass of this name, ``Gaussian`` or ``sketches.Gaussian``, in the first module that has it."""
    family, _, kind = name.rpartition(".")
    found = (getattr(module, kind, None) for module in modules if family in ("", _short(module)))
    return next((made for made in found if isinstance(made, type) and dataclasses.is_dataclass(made)), None)


def _short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _names(module: ModuleType) -> list[str]:
    return [name for name in sorted(vars(module)) if not name.startswith(HIDDEN) and _find(name, (module,)) is not None]


def shorten(part: Any) -> str:
    """Print a part without the fields that have their defaults."""
    if not dataclasses.is_dataclass(part):
        return f"({', '.join(map(shorten, part))})" if isinstance(part, tuple) else repr(part)
    fields = (field for field in dataclasses.fields(part) if field.repr and not _has_default(part, field))
    return f"{type(part).__name__}({', '.join(f'{f.name}={shorten(getattr(part, f.name))}' for f in fields)})"


def list_fields(part: Any, prefix: str) -> dict[str, Any]:
    """The fields of a dataclass and of those within it, by paths such as ``regressor__network__hidden``."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(part) if dataclasses.is_dataclass(part) else ():
        if field.init and field.compare:
            name = f"{prefix}__{field.name}"
            found |= {name: getattr(part, field.name), **list_fields(getattr(part, field.name), name)}
    return found


def replace_field(part: Any, path: str, value: Any) -> Any:
    """Return the dataclass with another value at a path."""
    name, _, rest = path.partition("__")
    if not dataclasses.is_dataclass(part) or name not in {field.name for field in dataclasses.fields(part)}:
        raise InputError(f"{part!r:.60} has no parameter {name!r}.")
    return dataclasses.replace(part, **{name: replace_field(getattr(part, name), rest, value) if rest else value})  # type: ignore[type-var] # checked


class MadeOfParts(BaseEstimator):
    """An estimator whose parameters include those of its parts: ``kernel__gamma``, ``regressor__network__hidden``."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep)
        return params | {k: v for name, part in params.items() for k, v in list_fields(part, name).items() if deep}

    def set_params(self, **params: Any) -> Self:
        nested = {name for name in params if dataclasses.is_dataclass(getattr(self, name.partition("__")[0], None))}
        nested = {name for name in nested if "__" in name}
        super().set_params(**{name: value for name, value in params.items() if name not in nested})
        for name in nested:
            part, _, path = name.partition("__")
            setattr(self, part, replace_field(getattr(self, part), path, params[name]))
        return self


def write_part(part: Any, *modules: ModuleType) -> dict[str, str]:
    """Write a part as its expression or, if it has none, as what it prints."""
    text = _try_to_write(part, *modules)
    return {"unwritten": repr(part)} if text is None else {"expression": text}


def read_part(name: str, written: dict[str, str], *modules: ModuleType) -> Any:
    """Build the part that :func:`write_part` wrote."""
    if "expression" in written:
        try:
            return parse_expression(written["expression"], *modules)
        except InputError as error:
            raise ModelFolderError(f"config.json is damaged, or from another version. Its {name}: {error}") from error
    raise ModelFolderError(
        f"The model was saved with a {name} of its author's own ({written['unwritten']}): pass it as "
        f"DSOKR.load(folder, {name}=...)."
    )


def pack(value: Any, name: str, tensors: Tensors) -> Any:
    """Move the arrays of a value to ``tensors``, and return the rest as JSON.

    Values are tensors, arrays, canonical outputs, what JSON can hold, and dictionaries of them.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        tensors[name] = torch.as_tensor(value)
        return {"kind": "tensor" if isinstance(value, Tensor) else "array"}
    kind, parts = _take_apart(value)
    return {"kind": kind, "parts": {key: pack(part, f"{name}.{key}", tensors) for key, part in parts.items()}}


def _take_apart(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, dict):
        return "dict", value
    if sp.issparse(value):
        return "sparse", {name: getattr(value, name) for name in CSR} | {"columns": value.shape[1]}
    if isinstance(value, GraphBatch):
        return "graph batch", {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, ViewBatch):
        return "view batch", {str(number): view for number, view in enumerate(value.views)}
    if len(value) and isinstance(value[0], Graph):
        return "graphs", {"batch": GraphBatch.of(value)}
    if len(value) and isinstance(value[0], tuple):
        views, forms = zip(*(canonical(list(view)) for view in zip(*value, strict=True)), strict=True)
        return "views", {"views": ViewBatch(*views), "forms": [dataclasses.asdict(form) for form in forms]}
    try:
        return "json", {"text": np.frombuffer(bytearray(json.dumps(value).encode()), np.uint8)}
    except TypeError as error:
        raise InputError(f"Outputs of type {type(value[0]).__name__} cannot be saved.") from error


def unpack(packed: Any, name: str, tensors: Tensors) -> Any:
    """Return the value that was given to :func:`pack`."""
    if not isinstance(packed, dict):
        return packed
    if "parts" not in packed:
        return tensors[name] if packed["kind"] == "tensor" else tensors[name].numpy()
    parts = {key: unpack(part, f"{name}.{key}", tensors) for key, part in packed["parts"].items()}
    match packed["kind"]:
        case "dict":
            return parts
        case "sparse":
            rows = sp.csr_array(tuple(map(parts.get, CSR)), shape=(len(parts["indptr"]) - 1, parts["columns"]))
            rows.check_format(full_check=True)  # compiled code trusts the indices
            return rows
        case "graph batch":
            return GraphBatch(**parts).checked()
        case "view batch":
            return ViewBatch(*parts.values())
        case "graphs":
            return list(parts["batch"])
        case "views":
            forms = map(Form.from_json, parts["forms"])
            restored = (form.restore(view) for form, view in zip(forms, parts["views"].views, strict=True))
            return list(zip(*restored, strict=True))
        case _:
            return json.loads(parts["text"].tobytes())


def restore_model(folder: Path, restore: Callable[[dict[str, Any], Tensors], T]) -> T:
    """Build a model from its saved configuration and tensors. Errors in these become one that names the folder."""

    def read() -> T:
        config, tensors = read_model(folder)
        try:
            return restore(config, tensors)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
            if isinstance(error, DSOKRError) or "out of memory" in str(error):
                raise
            what = f"{folder} is damaged, or was given parts it was not saved with"
            raise ModelFolderError(f"{what} ({type(error).__name__}: {error}).") from error

    return read_whole(folder, read)


def write_model(
    folder: Path, config: dict[str, Any], tensors: Tensors, facts: dict[str, Any], write_further: Callable[[Path], None]
) -> None:
    """Write a model's folder, whole or not at all. Its card shows ``facts``; ``write_further`` adds files to the draft.

    Only a saved model, or an empty folder, is ever replaced.
    """
    if folder.exists() and not is_replaceable(folder):
        raise ModelFolderError(f"{folder} exists and is not a saved model. Choose another folder.")
    with replace_folder(folder) as draft:
        weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(weights, str(draft / "model.safetensors"))
        (draft / "README.md").write_text(_write_card(config["parts"], facts), encoding="utf-8")
        write_further(draft)
        sums = {name: checksum(draft / name) for name in _list_files(draft)}
        head = {"format": FORMAT, "dsokr": __version__, "sha256": sums}
        write_json(draft / "config.json", head | config, sealed=True)


def _list_files(folder: Path) -> list[str]:
    """List the files whose checksums are in a model's configuration, by their paths in the folder."""
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir())
    return [name for name in found if name not in SEALED and name.partition("/")[0] in FILES]


def _write_card(parts: dict[str, dict[str, str]], facts: dict[str, Any]) -> str:
    made = [f"| {name} | `{text}` |" for name, written in parts.items() for text in written.values()]
    rows = "\n".join([*made, *(f"| {name} | {value} |" for name, value in facts.items())])
    return f"""# A DSOKR model

| | |
|---|---|
{rows}

```python
from dsokr import DSOKR

model = DSOKR.load("this folder")
model.predict(X)
```
"""


def is_replaceable(folder: Path) -> bool:
    """Whether a folder is empty, or holds a saved model and nothing else."""
    with suppress(NotADirectoryError, FileNotFoundError, ModelFolderError):
        names = {path.name for path in folder.iterdir() if not path.name.startswith(DRAFT)}
        return not names or (names <= FILES and bool(_read_config(folder)))
    return False


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return {name: config[name] for name in ("format", "dsokr", "sha256")} | config
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFolderError(f"{folder / 'config.json'} is damaged: {error}.") from error


def read_model(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Read the configuration and tensors of a saved model. Check every file that loading reads."""
    config = check_model(folder, FOR_PEOPLE)
    try:
        tensors = load_file(str(folder / "model.safetensors"))
    except SafetensorError as error:
        raise ModelFolderError(f"{folder / 'model.safetensors'} is damaged: {error}.") from error
    # aligned in memory as before saving, so that products are bit-identical
    return config, {name: tensor.clone() for name, tensor in tensors.items()}


def check_model(folder: Path, unchecked: Iterable[str] = ()) -> dict[str, Any]:
    """Check the files of a saved model against their checksums, and return its configuration."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder} is not a saved model: {name} is missing.")
    config = _read_config(folder)
    if config["format"] != FORMAT:
        raise ModelFolderError(
            f"{folder} was saved by dsokr {config['dsokr']} in another format: install that version, or train it again."
        )
    for name in SEALED:
        if (folder / name).is_file():
            read_sealed(folder / name)
    for name, kind in TYPES.items():
        if type(config.get(name)) is not kind:
            raise ModelFolderError(f"{folder / 'config.json'} is damaged: its {name} is {config.get(name)!r:.80}.")
    for name in sorted({*_list_files(folder), *config["sha256"]}.difference(unchecked)):
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder} is incomplete: {name} is missing.")
        if config["sha256"].get(name) != checksum(folder / name):
            raise ModelFolderError(f"{folder / name} is damaged or incomplete: its checksum is wrong.")
    return config

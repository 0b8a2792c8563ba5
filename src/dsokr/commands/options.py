"""What a fit is asked for: on the command line, or in a small TOML file."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsokr.errors import InputError
from dsokr.commands.kinds import closest

PATHS = ("train", "valid", "out")
COLUMNS = ("input", "output")
WORDS = ("input_kind", "output_kind", "kernel", "network", "encoder", "decoder", "device", "on_error")
WHOLE = ("epochs", "batch_size", "patience", "seed")
NUMBERS = ("validation_fraction", "learning_rate")
KNOWN = (*PATHS, *COLUMNS, *WORDS, "size", *WHOLE, *NUMBERS)


@dataclass(frozen=True)
class Options:
    """What `dsokr fit` is asked for. What is "auto" or None is chosen from the data."""

    train: Path
    input: str | tuple[str, ...]  # columns
    output: str | tuple[str, ...]
    out: Path
    input_kind: str = "auto"
    output_kind: str = "auto"
    kernel: str = "auto"
    network: str = "auto"
    encoder: str = ""  # folder or name of a text encoder
    decoder: str = "auto"
    size: str | int = "auto"
    valid: Path | None = None
    validation_fraction: float = 0.1
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = None
    seed: int = 0
    device: str = "auto"
    on_error: str = "skip"
    restart: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"--validation-fraction must be at least 0 and below 1. Got {self.validation_fraction}.")
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1. Got {getattr(self, name)}.")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"--seed must be from 0 to {2**31 - 1:,}. Got {self.seed}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise InputError(f"--learning-rate must be positive and finite. Got {self.learning_rate}.")
        if self.encoder and self.network not in ("auto", "encoder"):
            raise InputError(f"--encoder is a network itself. Got --network {self.network} beside it.")


def asked(config: Path | None, given: dict[str, Any]) -> Options:
    """The options of a file, if there is one, under those given otherwise (None: not given)."""
    found = {} if config is None else from_toml(config)
    found |= {name: value for name, value in given.items() if value is not None}
    for name, what in (
        ("train", "the table of pairs"),
        ("input", "the column (or columns) of the inputs"),
        ("output", "the column (or columns) of the outputs"),
        ("out", "the folder for the model"),
    ):
        if name not in found:
            raise InputError(f"Name {what} with --{name}.")
    return Options(**found)


def from_toml(path: Path) -> dict[str, Any]:
    """The options in a file. Names may have - or _ between words; paths are relative to the file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a TOML file.")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}.") from error
    return {name.replace("-", "_"): _value(name.replace("-", "_"), value, path) for name, value in found.items()}


def _value(name: str, value: Any, path: Path) -> Any:
    if name not in KNOWN:
        raise InputError(f"{path}: there is no option {name!r}.{closest(name, KNOWN)} It may hold {', '.join(KNOWN)}.")
    is_text, is_whole = isinstance(value, str), isinstance(value, int) and not isinstance(value, bool)
    if is_text and (name in PATHS or (name == "encoder" and (path.parent / value).is_dir())):
        return path.parent / value if name in PATHS else str(path.parent / value)
    if name in COLUMNS and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    fits = {
        "a text": is_text and name in (*COLUMNS, *WORDS, "size"),
        "a whole number": is_whole and name in (*WHOLE, "size"),
        "a number": (is_whole or isinstance(value, float)) and name in NUMBERS,
    }
    if any(fits.values()):
        return value
    wanted = "a whole number" if name in WHOLE else "a number" if name in NUMBERS else "a text"
    raise InputError(f"{path}: {name} must be {wanted}. Got {value!r}.")

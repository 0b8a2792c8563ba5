"""The command line for people with tables: fit, predict, rank, evaluate and report on their own files."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsokr.commands.predictor import Predictor


def __getattr__(name: str) -> Any:
    if name == "Predictor":  # imported on first use: `dsokr --help` needs no torch
        from dsokr.commands.predictor import Predictor

        return Predictor
    raise AttributeError(f"module 'dsokr.commands' has no attribute {name!r}")

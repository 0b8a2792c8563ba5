"""The tool for people with tables: fit, predict, rank, evaluate and report on one's own files."""

from dsokr.commands.predictor import Predictor

__all__ = ["Predictor"]

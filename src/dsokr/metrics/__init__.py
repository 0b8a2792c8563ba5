"""Metrics of predicted outputs. They know nothing of models."""

from dsokr.metrics.retrieval import ranks, retrieval
from dsokr.metrics.sets import exact_match, f1

__all__ = ["exact_match", "f1", "ranks", "retrieval"]

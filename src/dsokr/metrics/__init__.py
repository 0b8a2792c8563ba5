"""Metrics of predicted outputs. They know nothing of models."""

from dsokr.metrics.edit_distance import Bounds, EditDistanceTimeout, edit_distance, edit_distance_bounds
from dsokr.metrics.scores import (
    char_error,
    exact_match,
    f1,
    kendall_tau,
    levenshtein,
    ranks,
    retrieval,
    retrieval_of,
    word_accuracy,
)

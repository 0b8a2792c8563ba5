"""Metrics of predicted outputs. They know nothing of models."""

from dsokr.metrics.accuracy import char_error, exact_match, f1, kendall_tau, levenshtein, word_accuracy
from dsokr.metrics.edit_distance import Bounds, EditDistanceTimeout, edit_distance, edit_distance_bounds
from dsokr.metrics.retrieval import ranks, retrieval, retrieval_of

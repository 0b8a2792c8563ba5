"""Metrics of predicted outputs. They know nothing of models."""

from dsokr.metrics.edit_distance import Bounds, EditDistanceTimeout, edit_distance, edit_distance_bounds
from dsokr.metrics.rankings import kendall_tau
from dsokr.metrics.retrieval import ranks, retrieval, retrieval_of
from dsokr.metrics.sets import exact_match, f1
from dsokr.metrics.strings import char_error, levenshtein, word_accuracy

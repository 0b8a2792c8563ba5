"""Answers with a guarantee: sets that hold the right output as often as asked, and answers only where they are safe."""

from dsokr.conformal.calibration import Calibration, Coverage
from dsokr.conformal.sets import FILE, LISTED, SEARCHED, Answers, Best, Conformal, PredictionSet

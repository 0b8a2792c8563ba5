"""Regressors: what learns x -> coordinates in the basis of the outputs."""

from dsokr.regressors import networks
from dsokr.regressors.auto import Auto
from dsokr.regressors.base import Fitted, History, Regressor, Targets
from dsokr.regressors.forest import Forest
from dsokr.regressors.neighbors import Neighbors
from dsokr.regressors.neural import Neural
from dsokr.regressors.ridge import KernelRidge
from dsokr.regressors.scikit import Boosted, Scikit
from dsokr.regressors.stack import Stack
from dsokr.regressors.streams import Stream
from dsokr.regressors.training import Training

"""Regressors: what learns x -> coordinates in the basis of the outputs."""

from dsokr.regressors import networks
from dsokr.regressors.base import Fitted, History, Regressor, Targets
from dsokr.regressors.neural import Neural
from dsokr.regressors.ridge import KernelRidge
from dsokr.regressors.training import Training

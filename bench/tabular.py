"""``DSOKR(kernel)`` with no other argument against the usual baselines, on small public tables.

    PYTHONPATH=. python bench/tabular.py --data-dir FOLDER                          # or set DSOKR_DATA
    PYTHONPATH=. python bench/tabular.py --data-dir FOLDER --sets emotions wine     # some of the sets
    PYTHONPATH=. python bench/tabular.py --data-dir FOLDER --kernels Tanimoto Dice  # two kernels on label sets

Five folds, the same for all. What a baseline leaves open is chosen by three folds within the training pairs: penalties
and widths of ridge; for rankings sizes of leaves and numbers of neighbours; for label sets the threshold of
probabilities. Label sets are measured by the example-based F1, rankings by Kendall's τ; seconds are those of fitting,
choices included. Baselines on rankings regress the coordinates of the Kemeny kernel and are decoded as DSOKR is. Rows
are appended to the results as soon as they are known; a second run computes only what is missing. Everything runs on
the cores that the process may use.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from dsokr import DSOKR, kernels, sketch_basis, sketches
from dsokr.decoders import EmbeddedOutputs, Kemeny
from dsokr.metrics import f1, kendall_tau
from dsokr.regressors.inputs import Encoder
from studies.data.label_ranking import SOURCES as RANKINGS
from studies.data.label_ranking import load_label_ranking
from studies.data.multilabel import SOURCES as SETS
from studies.data.multilabel import load_multilabel
from studies.data.odor import load_odor
from studies.results import Results, group_rows, name_hardware, today

THRESHOLDS = np.concatenate([[0.01, 0.02, 0.03], np.linspace(0.05, 0.6, 23)])
FOLDS, CHOICES = 5, 3  # folds to test on, and to choose by
Predict = Callable[[Any], Any]


def load(name: str, folder: str | None) -> tuple[Any, Any, np.ndarray]:
    """Return inputs as DSOKR reads them, as a table of numbers for the baselines, and outputs."""
    if name in RANKINGS:
        data = load_label_ranking(name, folder)
        return data.X, data.X, data.rankings
    if name == "odor":
        smiles, Y = load_odor(folder)
        return smiles, Encoder.of(list(smiles)).encode(list(smiles)), Y
    (X, Y), (X_test, Y_test) = load_multilabel(name, folder)
    X = sp.vstack([X, X_test], format="csr") if sp.issparse(X) else np.concatenate([X, X_test])
    return X, X, np.concatenate([Y, Y_test]).astype(int)


def scaled(X: Any, estimator: Any) -> Any:
    return make_pipeline(MaxAbsScaler() if sp.issparse(X) else StandardScaler(), estimator)


def with_threshold(fit: Callable[[Any, Any], Predict]) -> Callable[[Any, Any], Predict]:
    """Turn a fit of probabilities (n, labels) into one of label sets, by the threshold that is best out of fold."""

    def fit_sets(X: Any, Y: np.ndarray) -> Predict:
        scores = np.zeros(Y.shape)
        for train, test in KFold(CHOICES, shuffle=True, random_state=0).split(Y):
            scores[test] = fit(X[train], Y[train])(X[test])
        best = max(THRESHOLDS, key=lambda threshold: f1((scores > threshold).astype(int), Y))
        predict = fit(X, Y)
        return lambda Q: (predict(Q) > best).astype(int)

    return fit_sets


def probabilities(estimator: Any, Q: Any) -> np.ndarray:
    """P(label) for every input and label; labels that never occur have probability 0."""
    found = estimator.predict_proba(Q)
    if isinstance(found, np.ndarray):
        return found
    return np.stack([p[:, 1] if p.shape[1] > 1 else np.zeros(len(p)) for p in found], axis=1)


def fit_forest_of_sets(X: Any, Y: np.ndarray) -> Predict:
    forest = RandomForestClassifier(100, random_state=0, n_jobs=-1).fit(X, Y)
    return lambda Q: probabilities(forest, Q)


def fit_ridge(X: Any, T: np.ndarray) -> Any:
    """Kernel ridge regression, its penalty and width chosen out of fold."""
    if sp.issparse(X):
        grid = {"kernelridge__alpha": [0.1, 1.0, 10.0], "kernelridge__kernel": ["cosine"]}
    else:
        widths = [factor / X.shape[1] / 2 for factor in (0.25, 1.0, 4.0)]  # the median squared distance is about 2 d
        grid = {"kernelridge__alpha": [0.01, 0.1, 1.0], "kernelridge__kernel": ["rbf"], "kernelridge__gamma": widths}
    model = make_pipeline(MaxAbsScaler() if sp.issparse(X) else StandardScaler(), KernelRidge())
    return GridSearchCV(model, grid, cv=KFold(CHOICES, shuffle=True, random_state=0)).fit(X, T)


def fit_ridge_of_sets(X: Any, Y: np.ndarray) -> Predict:
    chosen = fit_ridge(X, Y).best_estimator_
    scores = cross_val_predict(chosen, X, Y, cv=KFold(CHOICES, shuffle=True, random_state=0))
    best = max(THRESHOLDS, key=lambda threshold: f1((scores > threshold).astype(int), Y))
    return lambda Q: (chosen.predict(Q) > best).astype(int)


def fit_chain(X: Any, Y: np.ndarray) -> Predict:
    used = np.flatnonzero((Y.sum(axis=0) > 0) & (Y.sum(axis=0) < len(Y)))
    chain = scaled(X, ClassifierChain(LogisticRegression(solver="liblinear"), random_state=0)).fit(X, Y[:, used])

    def predict(Q: Any) -> np.ndarray:
        sets = np.tile(Y[:1] * (Y.sum(axis=0) == len(Y)), (Q.shape[0], 1))
        sets[:, used] = chain.predict(Q)
        return sets

    return predict


def fit_network(X: Any, Y: np.ndarray) -> Predict:
    network = scaled(X, MLPClassifier((256,), early_stopping=True, random_state=0)).fit(X, Y)
    return lambda Q: probabilities(network, Q)


def fit_neighbors_of_sets(X: Any, Y: np.ndarray) -> Predict:
    neighbors = scaled(X, KNeighborsClassifier(10)).fit(X, Y)
    return lambda Q: probabilities(neighbors, Q)


def on_rankings(fit: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Predict]:
    """Turn a fit of vectors into one of rankings: of their coordinates by the Kemeny kernel."""

    def fit_rankings(X: Any, Y: np.ndarray) -> Predict:
        generator = torch.Generator().manual_seed(0)
        basis = sketch_basis(kernels.Kemeny(), Y, sketches.SubSample(min(len(Y), 500)), generator=generator)
        known, model = EmbeddedOutputs(basis, np.unique(Y, axis=0)), fit(X, basis.embed(Y).numpy())
        return lambda Q: Kemeny().decode(basis, model.predict(Q), known).outputs

    return fit_rankings


def fit_forest(X: Any, T: np.ndarray) -> Any:
    grid = {"min_samples_leaf": [1, 4], "max_features": ["sqrt", 0.33]}
    forest = RandomForestRegressor(100, random_state=0, n_jobs=-1)
    return GridSearchCV(forest, grid, cv=KFold(CHOICES, shuffle=True, random_state=0)).fit(X, T)


def fit_neighbors(X: Any, T: np.ndarray) -> Any:
    grid = {"kneighborsregressor__n_neighbors": [1, 3, 5, 10, 20]}
    model = scaled(X, KNeighborsRegressor())
    return GridSearchCV(model, grid, cv=KFold(CHOICES, shuffle=True, random_state=0)).fit(X, T)


def fit_defaults(kernel: kernels.Kernel) -> Callable[[Any, Any], Predict]:
    return lambda X, Y: DSOKR(kernel, random_state=0).fit(X, Y).predict


OF_SETS = {
    "random forest, threshold": with_threshold(fit_forest_of_sets),
    "kernel ridge, threshold": fit_ridge_of_sets,
    "k nearest neighbours, threshold": with_threshold(fit_neighbors_of_sets),
    "MLP, threshold": with_threshold(fit_network),
    "classifier chain": fit_chain,
}
OF_RANKINGS = {
    "DSOKR(Kemeny())": fit_defaults(kernels.Kemeny()),
    "random forest": on_rankings(fit_forest),
    "kernel ridge": on_rankings(fit_ridge),
    "k nearest neighbours": on_rankings(fit_neighbors),
}


def measure(fit: Callable[[Any, Any], Predict], train: Any, test: Any, metric: str) -> dict[str, Any]:
    started = time.perf_counter()
    predict = fit(*train)
    seconds = time.perf_counter() - started
    predicted = predict(test[0])
    value = f1(predicted, test[1]) if metric == "f1" else kendall_tau(predicted, test[1]).mean().item()
    about = {"hardware": name_hardware(), "date": today()}
    return {"metrics": {metric: value}, "seconds": {"fit": seconds}, **about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--sets", nargs="+", default=[*RANKINGS, *SETS, "odor"])
    parser.add_argument(
        "--kernels", nargs="+", default=["Tanimoto"], choices=["Tanimoto", "Dice"], help="of label sets"
    )
    parser.add_argument("--out", type=Path, default=Path("results/tabular/defaults.jsonl"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    results = Results(options.out, say=print)
    DSOKR(kernels.Tanimoto()).fit(np.eye(20), np.eye(20)[::-1].astype(int)).predict(np.eye(20))  # compiles the search
    of_sets = {f"DSOKR({name}())": fit_defaults(getattr(kernels, name)()) for name in options.kernels} | OF_SETS
    for name in options.sets:
        raw, numbers, Y = load(name, options.data_dir)
        methods, metric = (OF_RANKINGS, "kendall_tau") if name in RANKINGS else (of_sets, "f1")
        for fold, (train, test) in enumerate(KFold(FOLDS, shuffle=True, random_state=0).split(Y)):
            for method, fit in methods.items():
                key = {"experiment": "tabular", "dataset": name, "split": fold, "method": method, "seed": 0}
                X = raw if method.startswith("DSOKR") else numbers
                pairs = (X[train], Y[train]), (X[test], Y[test])
                results.record(key, lambda fit=fit, pairs=pairs, metric=metric: measure(fit, *pairs, metric))
    print_table(results.rows)


def print_table(rows: list[dict[str, Any]]) -> None:
    for name, of_set in group_rows(rows, lambda row: row["dataset"]).items():
        print(name)
        for method, runs in group_rows(of_set, lambda row: row["method"]).items():
            value = mean(next(iter(run["metrics"].values())) for run in runs)
            print(
                f"  {method:<34} {value:.4f}  {mean(run['seconds']['fit'] for run in runs):7.2f} s  {len(runs)} folds"
            )


if __name__ == "__main__":
    main()

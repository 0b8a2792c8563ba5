"""What molecules smell of: the macro AUROC of 138 words, by ``DSOKR(Linear())`` and by a random forest.

    PYTHONPATH=. python bench/odor.py --data-dir FOLDER  # or set DSOKR_DATA

With the linear kernel on label vectors, h(x) estimates E[y | x]: the score of a label is ⟨h(x), e_l⟩, where e_l is the
set of that label alone. The forest reads the same fingerprints and scores a label by its probability; the least size of
its leaves is chosen by three folds within the training pairs. Folds are those of ``bench/tabular.py``. The AUROC is the
mean over the labels that some of the test molecules have, and others lack.
"""

import argparse
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from tabular import CHOICES, FOLDS, Predict, load, print_table

from dsokr import DSOKR, kernels
from studies.results import Results

LEAVES = (1, 2, 4)


def fit_linear(X: Any, Y: np.ndarray) -> Predict:
    model = DSOKR(kernels.Linear(), random_state=0).fit(X, Y)
    labels = model.basis_.embed(np.eye(Y.shape[1]))
    return lambda Q: (model.coefficients(Q) @ labels.T).cpu().numpy()


def fit_forest(X: Any, Y: np.ndarray) -> Predict:
    """Grow trees on all labels at once: the means of zeros and ones in a leaf are probabilities."""

    def fit(rows: np.ndarray, size: int) -> Any:
        forest = RandomForestRegressor(100, min_samples_leaf=size, max_features="sqrt", random_state=0, n_jobs=-1)
        return forest.fit(X[rows], Y[rows])

    folds = list(KFold(CHOICES, shuffle=True, random_state=0).split(Y))
    best = max(LEAVES, key=lambda size: sum(macro_auroc(fit(a, size).predict(X[b]), Y[b]) for a, b in folds))
    return fit(np.arange(len(Y)), best).predict


def macro_auroc(scores: np.ndarray, Y: np.ndarray) -> float:
    mixed = Y.min(axis=0) < Y.max(axis=0)
    return float(roc_auc_score(Y[:, mixed], scores[:, mixed], average="macro"))


def measure(fit: Any, train: tuple[Any, np.ndarray], test: tuple[Any, np.ndarray]) -> dict[str, Any]:
    started = perf_counter()
    predict = fit(*train)
    seconds = perf_counter() - started
    return {"metrics": {"macro_auroc": macro_auroc(predict(test[0]), test[1])}, "seconds": {"fit": seconds}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--out", type=Path, default=Path("results/tabular/odor.jsonl"))
    options = parser.parse_args()
    results = Results(options.out, say=print)
    smiles, numbers, Y = load("odor", options.data_dir)
    methods = {"DSOKR(Linear())": (fit_linear, smiles), "random forest": (fit_forest, numbers.toarray())}
    for fold, (train, test) in enumerate(KFold(FOLDS, shuffle=True, random_state=0).split(Y)):
        for method, (fit, X) in methods.items():
            key = {"experiment": "tabular", "dataset": "odor", "split": fold, "method": method, "seed": 0}
            pairs = (X[train], Y[train]), (X[test], Y[test])
            results.record(key, lambda fit=fit, pairs=pairs: measure(fit, *pairs))
    print_table(results.rows)


if __name__ == "__main__":
    main()

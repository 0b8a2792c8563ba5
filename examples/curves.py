"""From a noisy recording to the clean curve behind it. Outputs are vectors, compared by the Gaussian kernel.

The nearest training curve is hardly ever the right one; `decoders.Gradient` moves from there to the best curve of all.
Half a minute on a CPU. Run it with `python examples/curves.py`; a number after it is how many curves to train on.
"""

import sys
from dataclasses import dataclass

import numpy as np

from dsokr import DSOKR, Training, decoders, kernels, networks, sketches
from dsokr.regressors import Neural

n_train = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
times = np.linspace(0, 1, 50)


@dataclass(frozen=True)
class Curves:
    """Two bumps each, recorded through a slow device that smears them out, with noise."""

    clean: np.ndarray  # (n, 50)
    recorded: np.ndarray  # (n, 50)


def generate(n: int, seed: int) -> Curves:
    rng = np.random.default_rng(seed)
    height, centre, width = (rng.uniform(low, high, (n, 2, 1)) for low, high in ((0.3, 1), (0.15, 0.85), (0.04, 0.1)))
    clean = (height * np.exp(-(((times - centre) / width) ** 2))).sum(axis=1)
    lag = np.exp(-np.abs(times[:, None] - times) / 0.05) * (times[:, None] >= times)  # causal
    recorded = clean @ (lag / lag.sum(axis=1, keepdims=True)).T + rng.normal(0, 0.03, (n, 50))
    return Curves(clean, recorded)


train, test = generate(n_train, seed=0), generate(200, seed=1)

distances = np.square(train.clean[:100, None] - train.clean[None, :100]).sum(axis=2)
model = DSOKR(
    kernels.Gaussian(1 / np.median(distances)),
    sketches.SubSample(min(500, n_train)),
    Neural(
        networks.MLP((256, 256)),
        training=Training(epochs=60, batch_size=64, learning_rate=2e-3, schedule="linear", patience=None),
    ),
    decoder=decoders.Gradient(constraint=decoders.Box(0.0, 2.0)),
    random_state=0,
)
model.fit(train.recorded, train.clean)


def mse(curves: np.ndarray) -> float:
    return float(np.square(curves - test.clean).mean())


nearest = train.clean[model.rank(test.recorded, train.clean, k=1).indices[:, 0].cpu().numpy()]
predicted = model.predict(test.recorded)
print(f"mean squared error of the recordings          {mse(test.recorded):.5f}")
print(f"of the best training curve, Candidates()      {mse(nearest):.5f}")
print(f"of the best curve of all, Gradient()          {mse(predicted):.5f}")

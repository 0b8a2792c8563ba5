"""Which digits are in a picture? Label sets, compared by the Tanimoto kernel. Half a minute on a CPU.

Run it with `python examples/pictures_to_labels.py`; a number after it is how many pictures to train on.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from dsokr import DSOKR, Training, kernels, metrics, networks, sketches
from dsokr.regressors import Neural

n_train = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000

digits = load_digits()  # 1,797 handwritten digits of 8 × 8 pixels


def draw_pictures(n: int, rows: range, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three of these digits side by side, and the set of digits in the picture as zeros and ones."""
    chosen = np.random.default_rng(seed).choice(rows, size=(n, 3))
    labels = np.zeros((n, 10), dtype=int)
    np.put_along_axis(labels, digits.target[chosen], 1, axis=1)
    return np.concatenate(digits.images[chosen].swapaxes(0, 1), axis=2) / 16, labels


train_images, train_labels = draw_pictures(n_train, range(1_200), seed=0)
test_images, test_labels = draw_pictures(200, range(1_200, 1_797), seed=1)  # digits that were not trained on

model = DSOKR(
    kernels.Tanimoto(),
    sketches.SubSample(min(200, n_train)),
    Neural(
        networks.CNN(channels=(32, 64), hidden=128, where="anywhere"),
        training=Training(epochs=10, batch_size=64, learning_rate=4e-3, schedule="linear", patience=None),
    ),
    random_state=0,
)
model.fit(train_images, train_labels)

# One of the label sets seen in training, by the decoding rule that did best on the pictures that fit held out.
predicted = model.predict(test_images)
for true, guess in zip(test_labels[:5], predicted, strict=False):
    print(f"{np.flatnonzero(guess)} | true: {np.flatnonzero(true)}")
print(f"F1 {metrics.f1(predicted, test_labels):.3f}, exactly right {metrics.exact_match(predicted, test_labels):.0%}")

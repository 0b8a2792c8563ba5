"""Which coloured shapes are in a picture? Label sets, compared by the Tanimoto kernel. Half a minute on a CPU.

Run it with `python examples/pictures_to_labels.py`; a number after it is how many pictures to train on.
"""

import sys

import numpy as np

from dsokr import DSOKR, Training, kernels, metrics, networks, sketches
from studies.data import scenes

n_train = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000

train, test = scenes.generate(n_train, seed=0), scenes.generate(200, seed=1)

model = DSOKR(
    kernels.Tanimoto(),
    sketches.SubSample(min(200, n_train)),
    networks.CNN(channels=(32, 64), hidden=128, where="anywhere"),
    training=Training(epochs=10, batch_size=64, learning_rate=4e-3, schedule="linear", patience=None),
    random_state=0,
)
model.fit(train.images, train.labels)

# One of the label sets seen in training, by the scoring rule that did best on the pictures that fit held out.
predicted = model.predict(test.images)
for true, guess in zip(test.labels[:5], predicted, strict=False):
    names = [" and ".join(np.array(scenes.LABELS)[bits == 1]) for bits in (guess, true)]
    print(f"{names[0]} | true: {names[1]}")
print(f"F1 {metrics.f1(predicted, test.labels):.3f}, exactly right {metrics.exact_match(predicted, test.labels):.0%}")

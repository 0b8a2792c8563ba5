"""From a description in words to its molecule, among candidates: a minute on a CPU, with generated texts.

Run it from the project's root with `python -m examples.text_to_molecule [number of texts to train on]`.
With a pretrained encoder in a folder, put ``networks.TextEncoder("folder", rate=0.1)`` in place of the ``WordBag``.
"""

import sys

import torch

from dsokr import DSOKR, Ensemble, Training, chem, kernels, networks, sketches
from dsokr.decoders import Candidates
from dsokr.losses import Ranked
from dsokr.metrics import retrieval
from dsokr.regressors import Neural
from studies.data.chebi20 import describe_molecules

# 1. Texts, and the molecules that they describe: rows of a list of candidates.
n_train = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
data = describe_molecules(n_train, n_val=200, n_test=500)
candidates = chem.fingerprints(data.molecules.smiles, radius=2)
print(f"{len(data.train.texts)} texts to learn from, {candidates.shape[0]} candidates. One of the texts:")
print(f"  {data.train.texts[0]!r} is {data.molecules.smiles[data.train.rows[0]]}")


# 2. Two models that differ in the sketch they draw. The loss also ranks the true molecule before all others.
def fit_model(seed: int) -> DSOKR:
    model = DSOKR(
        kernels.Tanimoto(),
        sketches.SubSample(min(300, n_train)),
        Neural(
            networks.WordBag(width=64, hidden=(256,), buckets=1 << 11),
            loss=Ranked(temperature=0.1),
            training=Training(epochs=9, batch_size=64, learning_rate=3e-3, monitor="mrr", check_every=3),
        ),
        decoder=Candidates(outputs=candidates),
        random_state=seed,
    )
    validation = data.val.texts, candidates[data.val.rows]
    return model.fit(data.train.texts, candidates[data.train.rows], validation=validation)


models = [fit_model(seed) for seed in (0, 1)]

# 3. How high does the true molecule rank, by one model and by both together?
truth = torch.from_numpy(data.test.rows)
for name, answer in (("one model", models[0]), ("two models", Ensemble(models, "mean score", standardize=True))):
    found = retrieval(answer.scores(data.test.texts), truth)
    print(f"{name}: first for {found['hits@1']:.0%} of the texts, among the first ten for {found['hits@10']:.0%}")

# 4. The best candidates for a text.
question = data.test.texts[0]
ranking = models[0].rank([question], k=5)
print(question)
for index, score in zip(ranking.indices[0].tolist(), ranking.scores[0].tolist(), strict=True):
    print(f"  {score:.3f}  {data.molecules.smiles[index]}{'  <- the one' * (index == truth[0])}")

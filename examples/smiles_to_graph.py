"""From SMILES to molecular graphs: data, fit, rank, predict. Less than a minute on a CPU.

Run it from the project's root with `python -m examples.smiles_to_graph [number of molecules to train on]`.
"""

import random
import sys

from dsokr import DSOKR, Training, chem, kernels, networks, sketches
from dsokr.decoders import GraphSearch, Molecules
from dsokr.metrics import edit_distance
from dsokr.regressors import Neural
from studies.data import molecules

n_train = int(sys.argv[1]) if len(sys.argv) > 1 else 2_800

# Pairs of a string and a graph, all different. With your own SMILES, start at chem.graphs.
smiles = chem.many_smiles(molecules.generate(n_train + 200, seed=0, max_atoms=5))
smiles = [text for text in smiles if len(text) <= 12][: n_train + 100]  # short strings are fast to train on
random.Random(0).shuffle(smiles)  # rare molecules are generated late
graphs = chem.graphs(smiles)
test_smiles, test_graphs = smiles[n_train:], graphs[n_train:]

# Similar graphs share subtrees and shortest paths.
kernel = kernels.WeisfeilerLehman(2, edge_labels=True).normalized() + kernels.ShortestPath().normalized()

# A Transformer predicts coordinates in a basis drawn from the training graphs. The decoder searches all molecules.
model = DSOKR(
    kernel,
    sketches.SubSample(min(400, n_train)),
    Neural(
        networks.CharTransformer(layers=3, width=64, heads=4, dropout=0.0),
        training=Training(
            epochs=40, batch_size=32, learning_rate=3e-3, schedule="linear", warmup_steps=100, patience=None
        ),
    ),
    dim=64,  # the best directions of the sketch, as many as the network's last hidden layer can fill
    decoder=GraphSearch(Molecules(max_atoms=5)),
    random_state=0,
)
model.fit(smiles[:n_train], graphs[:n_train])

# The training molecules, best first.
ranking = model.rank(test_smiles[:1], k=3)
print(f"{test_smiles[0]} is like", ", ".join(smiles[i] for i in ranking.indices[0]))

# Molecules that may be new.
predicted = model.predict(test_smiles)
distances = edit_distance(predicted, test_graphs)
for given, graph, distance in zip(test_smiles[:10], predicted, distances, strict=False):
    print(f"{given:14} -> {chem.smiles(graph):14} {distance:.0f} edits away")
print(f"{(distances == 0).double().mean():.0%} of {len(distances)} test molecules exactly right")

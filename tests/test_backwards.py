"""The other direction: the words of texts, predicted from molecules."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from dsokr import Training
from dsokr.compute import seeded
from dsokr.metrics import ranks
from dsokr.regressors import Neural
from dsokr.rules import score
from studies import chebi20_models
from studies.backwards import Backwards, Features, Likelihoods, MoleculeWords
from studies.study import CPU

QUIET = Training(learning_rate=5e-3, batch_size=32, schedule="linear", patience=None, progress=False)
SMALL = Backwards(words=150, least=2, common=2, width=32, folds=3)


@pytest.fixture(scope="module")
def texts():
    pytest.importorskip("rdkit")
    from studies.data.chebi20 import describe_molecules

    return describe_molecules(300, 40, 40)


def fit(texts, epochs: int) -> Likelihoods:
    return SMALL.fit(*texts.train, texts.molecules, replace(QUIET, epochs=epochs), seed=0, device=CPU)


def test_the_score_is_the_likelihood_by_the_network_that_has_not_seen_the_molecule(texts, monkeypatch):
    trained = []
    train = Neural.fit

    def remember(regressor, X, targets, **options):
        trained.append((regressor.loss.network, set(X[:, 0].tolist())))
        return train(regressor, X, targets, **options)

    monkeypatch.setattr(Neural, "fit", remember)
    found = fit(texts, epochs=2)
    assert len(trained) == SMALL.folds
    assert all(len(seen) == pytest.approx(200, abs=30) for _, seen in trained)  # all networks learn from as much
    by_rule = score(found.embed(texts.val.texts), found.molecules, found.diag, "kernel") / 2
    present = torch.from_numpy(found.vectorizer.transform(texts.val.texts).toarray()).float()
    for row in (*texts.train.rows[:30].tolist(), *texts.test.rows[:5].tolist()):
        networks = [network for network, seen in trained if row not in seen]
        assert len(networks) == 1 or row in texts.test.rows
        direct = [
            -F.binary_cross_entropy_with_logits(
                network(torch.tensor([[row]])).expand_as(present), present, reduction="none"
            )
            for network in networks
        ]
        errors = [(one.sum(dim=1) - by_rule[:, row]).abs().max().item() for one in direct]
        assert min(errors) < 1e-3


def test_texts_find_their_molecules(texts):
    found = fit(texts, epochs=25)
    scores = score(found.embed(texts.test.texts), found.molecules, found.diag, "kernel")
    place, n = ranks(scores, torch.from_numpy(texts.test.rows)), len(texts.molecules)
    by_chance = (1 / torch.arange(1, n + 1)).mean()
    assert place.reciprocal().mean() > 5 * by_chance and place.median() < n / 10


def test_likelihoods_of_several_models_are_multiplied(texts):
    task = chebi20_models.TextTask(texts, chebi20_models.make_views(texts.molecules), "", "", CPU)
    training, rows = replace(QUIET, epochs=2), torch.arange(40)
    alone = [chebi20_models.predict_words("", SMALL).train(task, training, 1.0, seed) for seed in (0, SMALL.folds)]
    both = chebi20_models.predict_words("", SMALL, times=2).train(task, training, 1.0, 0)
    expected = sum(one.score("kernel", "test", rows) for one in alone)
    assert torch.allclose(both.score("kernel", "test", rows), expected, atol=1e-3)
    assert not torch.allclose(*(one.score("kernel", "test", rows) for one in alone), atol=1.0)


def test_words_of_a_molecule_do_not_depend_on_the_others(texts):
    features = Features.of(texts.molecules, common=2)
    with seeded(0):
        network = MoleculeWords(features, 8, torch.full((5,), 0.3)).eval()
    rows = torch.tensor([7, 0, 77, 7])[:, None]
    assert torch.allclose(network(rows), torch.cat([network(row[None]) for row in rows]), atol=1e-5)
    assert torch.allclose(network(rows).mean(), torch.tensor(0.3).logit(), atol=0.5)  # it starts from frequencies

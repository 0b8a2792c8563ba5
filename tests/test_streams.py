"""Training on pairs that are read block by block."""

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dsokr import DSOKR, Training, kernels, losses, networks
from dsokr.decoders import Candidates
from dsokr.errors import InputError, Interrupted
from dsokr.regressors import KernelRidge, Neural
from dsokr.regressors.streams import Stream
from dsokr.sketches import SubSample

N = 300


def make_pairs(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, (X[:, :3] + 0.1 * rng.normal(size=(n, 3)) > 0).astype(int)


X, Y = make_pairs()


def stream_of(rows: int = 40, **options) -> Stream:
    return Stream(lambda epoch: ((X[at : at + rows], Y[at : at + rows]) for at in range(0, N, rows)), **options)


def make_model(loss=None, folder=None, network=None, **training) -> DSOKR:
    how = Training(epochs=3, batch_size=32, progress=False, folder=folder, **training)
    regressor = Neural(network or networks.MLP((16,)), loss or losses.Squared(), how)
    return DSOKR(kernels.Tanimoto(), SubSample(100), regressor, random_state=0, device="cpu")


def assert_same(model: DSOKR, other: DSOKR) -> None:
    assert torch.equal(model.basis_.anchors, other.basis_.anchors)
    assert torch.equal(model.basis_.projection, other.basis_.projection)
    for row, expected in zip(model.history_.rows, other.history_.rows, strict=True):
        assert row == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(model.coefficients(X[:20]), other.coefficients(X[:20]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [losses.Squared(), losses.Ranked()], ids=str)
def test_a_stream_that_fits_into_its_window_trains_as_in_memory(loss):
    validation = X[:30], Y[:30]
    streamed = make_model(loss).fit(stream_of(window=2 * N, sample=N), validation=validation)
    assert_same(streamed, make_model(loss).fit(X, Y, validation))
    assert streamed.n_pairs_ == N


def test_lengths_of_texts_are_sorted_as_in_memory():
    texts = ["ab" * (1 + i % 7) for i in range(N)]
    stream = Stream(lambda epoch: [(texts[:100], Y[:100]), (texts[100:], Y[100:])], window=2 * N, sample=N)
    make = lambda: make_model(network=networks.CharTransformer(width=8, layers=1, heads=1), validation_fraction=0)  # noqa: E731
    streamed, expected = make().fit(stream), make().fit(texts, Y)
    assert streamed.history_["train_loss"] == pytest.approx(expected.history_["train_loss"], rel=1e-5)


@pytest.mark.parametrize("size", [1, 5, 64, N - 1, N, 2 * N])
def test_the_sample_does_not_depend_on_the_blocks(size):
    samples = [stream_of(rows, sample=max(2, size)).draw(seed=3) for rows in (1, 7, 40, N)]
    for sample in samples:
        np.testing.assert_array_equal(sample.X, samples[0].X)
        assert sample.total == N and len(sample.Y) == min(N, max(2, size))
    order = [int(np.flatnonzero((x == X).all(axis=1))[0]) for x in samples[0].X]
    assert order == sorted(set(order))


def test_samples_are_uniform():
    numbers = list(range(20))
    stream = Stream(lambda epoch: [(numbers[:3], numbers[:3]), (numbers[3:], numbers[3:])], sample=5)
    drawn = np.bincount(np.concatenate([stream.draw(seed).X for seed in range(2000)]), minlength=20)
    assert abs(drawn - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_windows_hold_every_pair_once_and_no_more_than_asked():
    for rows in (1, 32, 100, N, N + 1):
        windows = list(stream_of(40).windows(1, rows))
        np.testing.assert_array_equal(np.concatenate([xs for xs, _ in windows]), X)
        assert [len(xs) for xs, _ in windows] == [rows] * (N // rows) + ([N % rows] if N % rows else [])


class Block(list):
    """A list that counts how many of its kind exist."""

    alive = most = 0

    def __init__(self, items):
        super().__init__(items)
        Block.alive += len(self)
        Block.most = max(Block.most, Block.alive)
        self.size = len(self)

    def __del__(self):
        Block.alive -= self.size


def test_few_blocks_are_alive_at_once():
    n, rows = 20_000, 100
    Block.alive = Block.most = 0

    def read(epoch):
        for at in range(0, n, rows):
            yield Block(range(at, at + rows)), Block(range(at, at + rows))

    stream = Stream(read, window=1000, sample=50)
    assert stream.draw(0).total == n
    assert Block.most <= 4 * rows
    for xs, ys in stream.windows(1, 1000):
        assert len(xs) == len(ys) == 1000
    gc.collect()
    assert Block.most <= 2 * (1000 + 2 * rows)


def test_small_windows_learn_about_as_well(tmp_path):
    validation = X[:60], Y[:60]
    streamed = make_model(learning_rate=0.03).fit(stream_of(window=64, sample=120), validation=validation)
    whole = make_model(learning_rate=0.03).fit(X, Y, validation)
    assert streamed.score(X, Y) > whole.score(X, Y) - 0.1 > 0.5
    streamed.save(tmp_path / "model")
    torch.testing.assert_close(DSOKR.load(tmp_path / "model", device="cpu").coefficients(X), streamed.coefficients(X))


def test_anchors_of_a_stream_are_those_of_its_sample():
    stream = stream_of(window=64, sample=120)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    sample = stream.draw(seed)
    model = make_model(validation_fraction=0).fit(stream)
    expected = make_model(validation_fraction=0).fit(sample.X, sample.Y)
    assert torch.equal(model.basis_.projection, expected.basis_.projection)


def test_an_interrupted_training_resumes_within_an_epoch(tmp_path):
    read, stops = stream_of(30).read, [True]

    def read_until_stopped(epoch):
        for number, block in enumerate(read(epoch)):
            if epoch == 2 and number == 7 and stops[0]:
                raise KeyboardInterrupt
            yield block

    def fit(source, name):
        stream = Stream(source, window=64, sample=100)
        return make_model(validation_fraction=0, folder=tmp_path / name).fit(stream)

    expected = fit(read, "whole")
    with pytest.raises(Interrupted):
        fit(read_until_stopped, "stopped")
    stops[:] = [False]
    resumed = fit(read_until_stopped, "stopped")
    assert resumed.history_["train_loss"][-1] == pytest.approx(expected.history_["train_loss"][-1], rel=1e-5)
    torch.testing.assert_close(resumed.coefficients(X), expected.coefficients(X))


def write_parquet(folder: Path, parts: int) -> list[Path]:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = []
    for number, at in enumerate(np.array_split(np.arange(N), parts)):
        columns = {f"x{i}": X[at, i] for i in range(4)}
        columns["label"] = arrow.FixedSizeListArray.from_arrays(arrow.array(Y[at].ravel()), 3)
        columns["text"] = arrow.array([str(i) for i in at])
        files.append(folder / f"part-{number}.parquet")
        parquet.write_table(arrow.table(columns), files[-1])
    return files


COLUMNS = [f"x{i}" for i in range(4)]


def test_parquet_files_give_the_same_model_as_their_rows(tmp_path):
    stream = Stream.parquet(write_parquet(tmp_path, 1), COLUMNS, "label", window=2 * N, sample=N)
    streamed = make_model(validation_fraction=0).fit(stream)
    assert_same(streamed, make_model(validation_fraction=0).fit(X, Y))


def test_parquet_files_come_in_another_order_in_every_epoch(tmp_path):
    stream = Stream.parquet(write_parquet(tmp_path, 6), "text", "label")
    orders = [[int(text) for xs, _ in stream.read(epoch) for text in xs] for epoch in range(4)]
    assert orders[0] == list(range(N)) and all(sorted(order) == orders[0] for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_bad_streams_give_a_sentence(tmp_path):
    files = write_parquet(tmp_path, 1)
    with pytest.raises(InputError, match="has no column 'y'"):
        Stream.parquet(files, "text", "y")
    (tmp_path / "broken.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        Stream.parquet([tmp_path / "broken.parquet"], "text", "label")
    with pytest.raises(InputError, match="at least one Parquet file"):
        Stream.parquet([], "text", "label")
    with pytest.raises(InputError, match="as many inputs as outputs"):
        Stream(lambda epoch: [([1, 2], [1])]).draw(0)
    with pytest.raises(InputError, match="at least two pairs"):
        Stream(lambda epoch: []).draw(0)
    with pytest.raises(InputError, match="Only networks learn from a stream"):
        DSOKR(kernels.Tanimoto(), SubSample(10), KernelRidge()).fit(stream_of())
    with pytest.raises(InputError, match="brings its outputs"):
        make_model().fit(stream_of(), Y)
    with pytest.raises(InputError, match="held out"):
        make_model().fit(stream_of())


def test_own_candidates_are_kept():
    model = make_model(validation_fraction=0)
    model.decoder = Candidates(outputs=Y[:5])
    assert len(model.fit(stream_of(window=64, sample=50)).known_) == 5


def main(folder: Path) -> None:
    """One of two processes started by torchrun."""
    model = make_model(trainer={"devices": 2, "strategy": "ddp"}, folder=folder / "run", validation_fraction=0)
    training = replace(model.regressor.training, batch_size=16)
    model.regressor = replace(model.regressor, training=training)
    model.fit(stream_of(window=64, sample=120))
    rank = torch.distributed.get_rank()
    (folder / f"{rank}.json").write_text(json.dumps([model.history_.rows, model.coefficients(X[:5]).tolist()]))


@pytest.mark.slow
def test_two_processes_train_on_a_stream_as_one_with_twice_the_batch(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    done = subprocess.run([*launch, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    expected = make_model(validation_fraction=0).fit(stream_of(window=64, sample=120))
    assert first == second
    for row, other in zip(first[0], expected.history_.rows, strict=True):
        assert row == pytest.approx(other, rel=1e-4)
    np.testing.assert_allclose(first[1], expected.coefficients(X[:5]), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))

"""Writes the pages and figures under docs/ that show numbers, from the files in results/. Nothing is typed by hand."""

from dataclasses import dataclass
from pathlib import Path

from dsokr.experiments import smi2mol_report, synthetic
from dsokr.experiments.results import read_rows

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "results", ROOT / "docs"


def synthetic_page(folder: Path) -> str:
    """The synthetic study: the figure, the table and what they say, from the rows."""
    rows = synthetic.table(folder)
    models = read_rows(folder / "models.jsonl")
    scores = read_rows(folder / "leverage.jsonl")[0]["metrics"]["scores"]
    nn, by = rows[0], {(row["model"], row.get("p")): row for row in rows}
    at75 = by["DSOKR, SubSample", 75]
    rotated = by[f"DSOKR, {synthetic.ROTATED}", 50]
    worst = by["DSOKR, SubSample", 2]
    replicates = len({row["seed"] for row in models})
    seconds = sum({row["seed"]: row["seconds"]["replicate"] for row in models}.values())
    reduced = read_rows(folder.with_name(f"{folder.name}-reduced") / "models.jsonl")
    reduced_seconds = sum({row["seed"]: row["seconds"]["replicate"] for row in reduced}.values())
    missed = Missed(models[0]["task"])
    drop = max(range(1, len(scores)), key=lambda i: scores[i - 1] / scores[i])
    lines = [
        f"| {row['model']} | {row.get('p', '')} | {row['parameters']:,} | {row['mse']:.5f} | "
        + (f"{row['excess']:+.1%} | {row['perfect_h']:.5f} |" if "p" in row else "| |")
        for row in rows
    ]
    return f"""# The synthetic study: Figure 1

`dsokr reproduce synthetic`. Made by `docs/render.py` from `results/synthetic/*.jsonl`: {replicates} replicates,
{len(models)} models, {seconds:.0f} s of training on one {models[0]["hardware"]}. With `--reduced`
({len(reduced)} models, {len({row["seed"] for row in reduced})} replicates) it was {reduced_seconds / 60:.0f} minutes
on {reduced[0]["hardware"]}.

![leverage scores, Perfect h, and DSOKR minus NN](../figures/synthetic.png)

The task is the paper's: 50,000 pairs, inputs of 2,000 dimensions, outputs of 1,000 near a subspace of 50, noise 0.01.
All models are single-layer perceptrons, trained alike. The mean squared error of the noise alone is 0.01.

**Leverage scores** (left). They drop to their level after rank {drop}: n_S = √50,000 = 224 outputs were sampled, and
with independent noise those explain their own noise and nobody else's. The level says how large the pilot sample was;
that it is an upper bound for the dimension, 50, is what the paper uses.

**Perfect h** (centre) falls steeply up to p = 50 and DSOKR follows it (right). DSOKR at m = 75 has
{at75["parameters"]:,} parameters, the NN {nn["parameters"]:,}. On the scale of the paper's figure they meet there: the
difference of their errors is {(at75["mse"] - nn["mse"]) / (worst["mse"] - nn["mse"]):.1%} of what it is at m = 2. But
it is not within 1 % of the NN's error, {nn["mse"]:.5f}: at m = 75 DSOKR has {at75["mse"]:.5f}, {at75["excess"]:+.0%}.
No training can change that. The span of m outputs with noise σ² misses a share 1 / (1 + (m − d) s / (σ² d_y)) of the
signal's variance s = {missed.signal:.0f} in each of the d = 50 directions, which adds {missed(75):.3f} to the error at
m = 75 and {missed(100):.3f} at m = 100. Perfect h, with no learning at all, has {at75["perfect_h"]:.5f} and
{by["DSOKR, SubSample", 100]["perfect_h"]:.5f}.

**Past the paper.** Sketched kernel PCA (the paper's equation SKPCA) takes the best p directions of a larger span. From
a sketch of 1,000 outputs, p = 50 directions give {rotated["mse"]:.5f}, {rotated["excess"]:+.1%} against the NN, with
{rotated["parameters"]:,} parameters: better, because the noise in the other 950 dimensions is not fitted.

| model | p | parameters | test MSE | against NN | Perfect h MSE |
|---|---|---|---|---|---|
{chr(10).join(lines)}
"""


@dataclass(frozen=True)
class Missed:
    """The mean squared error that a sketch of m noisy outputs adds by missing part of the signal, to first order."""

    task: dict[str, float]

    @property
    def signal(self) -> float:
        """The variance of the signal in each of its directions: the trace of C."""
        return sum(j**-0.5 for j in range(1, int(self.task["input_dim"]) + 1))

    def __call__(self, m: int) -> float:
        d, width, noise = self.task["rank"], self.task["output_dim"], self.task["noise"]
        share = 1 / (1 + (m - d) * self.signal / (noise * width))
        return share * self.signal * d / width


def smi2mol_page(folder: Path) -> str:
    """The SMI2Mol study: the table, the figures and what they say, from the rows."""
    rows = {row["name"]: row for row in smi2mol_report.table(folder)}
    models, kernels = read_rows(folder / "models.jsonl"), read_rows(folder / "kernels.jsonl")
    ours = [row for row in models if row["model"] == "ours" and row["decoder"] == "GraphSearch"]
    searched, listed = rows["DSOKR, sum of kernels, GraphSearch"], rows["DSOKR, sum of kernels, best rule"]
    parts = {name: sum(row["seconds"][name] for row in ours) / len(ours) for name in ("basis", "training", "decoding")}
    n_test = 2000
    lines = [
        f"| {row['kernel']} | {row['metrics']['ged']:.3f} | {row['metrics']['ged_edge_labels']:.3f} |"
        for row in sorted(kernels, key=lambda row: row["metrics"]["ged"] + row["metrics"]["ged_edge_labels"])
    ]
    return f"""# SMI2Mol: from SMILES to molecular graphs

`dsokr reproduce smi2mol --data-dir FOLDER`. Made by `docs/render.py` from `results/smi2mol/*.jsonl`. QM9, 131,382
molecules to train on, 500 to validate, 2,000 to test; models were trained on one {ours[0]["hardware"]}. The graph
edit distance (GED) is exact.

{smi2mol_report.markdown(list(rows.values()))}

Baselines choose what is open on the validation molecules, as our models do. NNBary-FGW computes optimal transport
plans in every step and was trained on as many molecules as the table says; the rows "few molecules" are our model
trained on that many. The FGW methods predict no bond orders.

**Past the list.** Hardly any test molecule is among the candidates, so a list has a floor. `decoders.GraphSearch`
edits the best candidates, over all molecules that keep their valences, for as long as the score rises: it finds exactly
the right molecule in {searched["exact"][0]:.1%} of cases, at a mean distance of {searched["ged_edge_labels"][0]:.3f},
where the best candidate by the same network is at {listed["ged_edge_labels"][0]:.3f}.

**Time.** A split of our model takes {parts["basis"]:.0f} s for the basis and the coordinates, {parts["training"]:.0f} s
of training and {parts["decoding"]:.1f} s for searching {n_test:,} molecules, on average over {len(ours)} splits.

## Drawn predictions

The first test molecules of the first split; the number is the edit distance to the truth, with edge labels.

![predictions of every method beside the true molecule](../figures/smi2mol-predictions.png)

## Figure 2: Perfect h

With the true coordinates in the network's place, how near is the best training molecule? By the paper's rule
2⟨z, ψ̃(y)⟩ − k(y, y) many anchors are needed; by the distance or the angle within the span, few.

![GED of Perfect h against the sketch size for three kernels](../figures/smi2mol.png)

## Which kernel

Perfect h on the validation molecules, {kernels[0]["m"]:,} anchors, rule "projected": a kernel is good if the molecule
nearest to the truth by the kernel is near to it by the edit distance. A sum of kernels that see labels, bonds, labelled
paths and bare path lengths does best, and was chosen.

| kernel | GED without edge labels | GED with edge labels |
|---|---|---|
{chr(10).join(lines)}
"""


PAGES = {"synthetic": synthetic_page, "smi2mol": smi2mol_page}


def main() -> None:
    synthetic.figure(RESULTS / "synthetic", DOCS / "figures" / "synthetic.png")
    smi2mol_report.figure(RESULTS / "smi2mol", DOCS / "figures" / "smi2mol.png")
    smi2mol_report.gallery(RESULTS / "smi2mol", DOCS / "figures" / "smi2mol-predictions.png")
    for name, page in PAGES.items():
        (DOCS / "results" / f"{name}.md").write_text(page(RESULTS / name), encoding="utf-8")


if __name__ == "__main__":
    main()

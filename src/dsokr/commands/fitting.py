"""From a table of pairs to a saved model with its report."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Generator

from dsokr import __version__, losses, selection, sketches
from dsokr.decoders import Candidates
from dsokr.compute import resolve_device
from dsokr.errors import DSOKRError, InputError, Interrupted, ModelFolderError, TrainingError
from dsokr.saving import is_replaceable
from dsokr.kernels import Kernel
from dsokr.files import LOCK, sole_writer
from dsokr.outputs import count, distinct, take
from dsokr.commands import choices, evaluation, guess, report, tables
from dsokr.commands.kinds import Cell, Image, Kind, Labels, OutputKind, String, Vector, counted, numbers
from dsokr.commands.options import Options
from dsokr.commands.predictor import Predictor
from dsokr.commands.problems import Problems
from dsokr.commands.reading import Cells, GoodPairs, columns_named, common_columns, defined_pairs, good_pairs, read_cells
from dsokr.commands.splitting import hold_out
from dsokr.regressors.training import Training
from dsokr.files import check_place, drafted

LEAST_ROWS = 10
HELD_OUT_FOR_SIZE = 1000  # outputs on which the sketch size is chosen, at most
TOLERANCE = 0.05  # share of the best-to-worst range that is good enough for a sketch

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """The data and all that was chosen for them, before the training."""

    options: Options
    columns: tuple[list[str], list[str]]  # of the inputs and of the outputs
    input: Kind
    output: OutputKind
    kernel: Kernel
    kernel_name: str
    network_name: str
    parts: dict[str, Any]  # of Predictor.trained
    train: GoodPairs
    valid: GoodPairs | None
    repeats: str  # what became of rows with the input of another row


@dataclass(frozen=True, eq=False)
class Fitted:
    """The model, where it was saved, and the rows that were not used."""

    predictor: Predictor
    folder: Path
    report: Path
    problems: Problems


def fit(options: Options, say: Say) -> Fitted:
    """Read, choose, train, save and report. Everything that is chosen is said. Interrupted, the same call goes on."""
    check_folder(options.out)
    if options.encoder:
        choices.check_encoder(options.encoder)
    resolve_device(options.device)
    draft = unfinished(options.out)
    with sole_writer(options.out, "dsokr fit", place=draft):
        try:
            return _fit(options, draft, say)
        except KeyboardInterrupt as stop:
            if not (draft / "plan.json").is_file():
                raise
            said = str(stop).partition(". ")[0] or "Stopped"
            raise Interrupted(f"{said}. Run the same command again to go on.") from stop


def _fit(options: Options, draft: Path, say: Say) -> Fitted:
    started, folder = time.perf_counter(), options.out
    problems = Problems.of(options.on_error)
    plan = planned(options, problems, say)
    _check_replaced(plan, say)
    fingerprint = _fingerprint(plan)
    curve, size = _prepared(plan, draft, fingerprint, say)
    predictor = _trained(plan, size, draft, say)
    n_valid = 0 if plan.valid is None else len(plan.valid)
    facts = _facts(plan, curve, size, problems) | {"seconds": round(time.perf_counter() - started, 1)}
    if plan.valid is not None:
        cells = plan.valid.cells
        facts["validation"] = evaluation.evaluate(predictor, cells.inputs, cells.outputs)
        facts["examples"] = report.examples(predictor, cells)
        say(f"Validation: {evaluation.sentence(facts['validation'], n_valid)}")
    predictor = replace(predictor, facts=facts)
    predictor.save(folder)
    page = report.write(predictor, folder / "report.html", model=str(folder))
    tables.write_skipped(problems, folder / "skipped.csv")
    _remove(draft)
    return Fitted(predictor, folder, page, problems)


def planned(options: Options, problems: Problems, say: Say) -> Plan:
    """Read the pairs and settle everything that can be settled without training."""
    source = tables.table(options.train)
    columns = columns_named(source, options.input, "--input"), columns_named(source, options.output, "--output")
    both = [name for name in columns[0] if name in columns[1]]
    if both:
        raise InputError(f"The column {both[0]!r} is among both --input and --output. Leave it out of one of them.")
    cells = read_cells(options.train, *columns, problems)
    say(f"{options.train}: {counted(tables.seen(source, cells.rows, problems), 'row')}")
    input = guess.input_named(options.input_kind, columns[0], cells.inputs, _where(cells))
    output = guess.output_named(options.output_kind, columns[1], cells.outputs, _where(cells))
    _note_commas(output, cells.outputs, guessed=options.output_kind == "auto")
    kernel_name, of_kernel = _by_name(options.kernel, choices.KERNELS[type(output)], "kernel", f"{output.name} outputs")
    asked = f"encoder:folder={options.encoder}" if options.encoder else options.network
    network_name, of_network = _by_name(asked, choices.networks_of(input), "network", f"{input.name} inputs")

    cells = _located(cells, input)
    input = input.adapted(cells.inputs)
    output = choices.for_kernel(output, kernel_name, of_kernel).adapted(cells.outputs)
    good = good_pairs(cells, input, output, _told(columns), problems)
    _check_enough(good, options, problems)
    _check_extremes(good.pairs.X, good.cells.inputs, input, columns[0], good.cells)
    _check_extremes(good.pairs.Y, good.cells.outputs, output, columns[1], good.cells)
    _check_varied(good, columns[1])
    kernel = choices.kernel(output, kernel_name, of_kernel, good.pairs.Y)
    good = defined_pairs(good, kernel, _told(columns)[1], problems)
    _check_enough(good, options, problems)
    train, valid, repeats = _split(good, options, columns, input, output, kernel, problems)
    _check_varied(train, columns[1])
    _check_size(options.size, len(train))
    decoder = choices.decoder(options.decoder, output, kernel, train.pairs.Y)
    loss = choices.loss(output, decoder)
    training = _training(options, choices.training(input, network_name, len(train)))
    if isinstance(input, Image):
        training = _without_lonely_picture(training, len(train), options.batch_size)
    if valid is not None and isinstance(loss, losses.Ranked):
        training = replace(training, monitor="mrr")
    parts = {
        "kernel": kernel,
        "network": choices.network(input, network_name, of_network),
        "decoder": decoder,
        "loss": loss,
        "training": training,
        "seed": options.seed,
        "device": options.device,
    }
    names = choices.written(kernel_name, of_kernel), choices.written(network_name, of_network)
    plan = Plan(options, columns, input, output, kernel, *names, parts, train, valid, repeats)
    for name, value in chosen(plan).items():
        say(f"  {name:<12}{value}")
    return plan


def chosen(plan: Plan) -> dict[str, str]:
    """Everything that was chosen, in words."""
    training, decoder = plan.parts["training"], plan.parts["decoder"]
    listed = isinstance(decoder, Candidates)
    n_valid = 0 if plan.valid is None else len(plan.valid)
    where = f" from {plan.options.valid}" if plan.options.valid else ""
    return {
        "input": f"{_columns(plan.columns[0])} as {plan.input.name}",
        "output": f"{_columns(plan.columns[1])} as {plan.output.name}",
        "kernel": plan.kernel_name,
        "network": plan.network_name,
        "decoder": "candidates: the best of a list" if listed else "search: the best of all there can be",
        "loss": "distance to the right output"
        + (", and its rank among the others" if isinstance(plan.parts["loss"], losses.Ranked) else ""),
        "pairs": f"{len(plan.train):,} to train on, {n_valid:,} held out for validation{where}",
        **({"repeats": plan.repeats} if plan.repeats else {}),
        "training": f"up to {counted(training.epochs, 'epoch')} in batches of {training.batch_size}, "
        f"{training.optimizer} at {training.learning_rate:g}"
        + ("" if plan.valid is None else f", stops after {counted(training.patience, 'epoch')} without gain"),
        "seed": str(plan.options.seed),
    }


def check_folder(folder: Path) -> None:
    """Whether a model can be saved there, asked before any work is done."""
    if folder.exists() and not is_replaceable(folder):
        raise ModelFolderError(f"{folder} exists and is not a saved model. Choose another folder with --out.")
    check_place(folder)


def _check_replaced(plan: Plan, say: Say) -> None:
    """A finished model gives way to one of the same task; one of another task only when that is asked for."""
    folder = plan.options.out
    if not (folder / "config.json").is_file():
        return
    if not plan.options.restart and _task_in(folder) != _task_of(plan):
        raise InputError(
            f"{folder} holds a model of another task{_described(_task_in(folder))}. Choose another folder with --out, "
            "or add --restart to replace it."
        )
    say(f"  {'replaces':<12}the model that is in {folder} now")


def _task_of(plan: Plan) -> tuple[Any, ...]:
    return plan.columns[0], plan.input.name, plan.columns[1], plan.output.name


def _task_in(folder: Path) -> tuple[Any, ...] | None:
    """Columns and kinds of the model in a folder, if it was made by `dsokr fit`."""
    try:
        task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        columns = task["facts"]["columns"]
        return columns["input"], task["input"]["kind"], columns["output"], task["output"]["kind"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _described(task: tuple[Any, ...] | None) -> str:
    if task is None:
        return ""
    return f" ({_columns(task[0])} as {task[1]} to {_columns(task[2])} as {task[3]})"


def unfinished(folder: Path) -> Path:
    """Where a training that goes into this folder keeps its state until it ends."""
    folder = Path(folder)
    return folder.parent / f".{folder.name}.unfinished"


def _by_name(text: str, table: Mapping[str, choices.Choice], what: str, of: str) -> tuple[str, dict[str, Any]]:
    """What was asked for, or the first of the table; with its parameters."""
    return choices.named(next(iter(table)) if text == "auto" else text, table, what, f" for {of}")


def _told(columns: tuple[list[str], list[str]]) -> tuple[str, str]:
    return ", ".join(columns[0]), ", ".join(columns[1])


def _check_size(size: str | int, n: int) -> None:
    if str(size) != "auto" and not (str(size).isdigit() and 1 <= int(size) <= n):
        raise InputError(f"--size must be auto, or from 1 to the number of training rows, {n}. Got {size}.")


def _check_varied(pairs: GoodPairs, columns: list[str]) -> None:
    if len(distinct(pairs.pairs.Y)) == 1:
        where = f"column{'s' * (len(columns) > 1)} {', '.join(columns)}"
        raise InputError(f"All outputs in the {where} are the same: there is nothing to learn.")


def _check_enough(good: GoodPairs, options: Options, problems: Problems) -> None:
    if len(good) < LEAST_ROWS:
        skipped = f" ({len(problems.found):,} skipped)" if problems.found else ""
        raise InputError(
            f"{options.train} has {counted(len(good), 'row')} that can be used{skipped}. At least {LEAST_ROWS} are "
            "needed."
        )


def _check_extremes(values: Any, written: list[Cell], kind: Kind, columns: list[str], cells: Cells) -> None:
    """That no number is so large that a network, which computes with seven digits, sees no others beside it."""
    if not isinstance(kind, Vector):
        return
    far = np.abs(values - np.median(values, axis=0))
    for column in np.flatnonzero(np.median(far, axis=0) < 1e-6 * far.max(axis=0)):
        found = np.array([numbers(cell)[column] for cell in written])
        if 2 * len(np.unique(values[:, column].astype(np.float32))) <= len(np.unique(found)):
            at = int(far[:, column].argmax())
            name = columns[column] if len(columns) > 1 else columns[0]
            raise InputError(
                f"{_where(cells)(at)}, column {name!r}: beside {found[at]:g} the other numbers all look the same. Mend "
                "it, or leave the row out; numbers of very different sizes are best given as logarithms."
            )


def _note_commas(output: OutputKind, cells: list[Cell], guessed: bool) -> None:
    """Say that labels are not written with commas, where cells look as if they were."""
    written = {cell.strip() for cell in cells if isinstance(cell, str)} - {""}
    parts = {part.strip() for cell in written for part in cell.split(",")}
    asked = isinstance(output, Labels) or (guessed and isinstance(output, String) and len(parts) <= len(cells) / 5)
    separated = any(";" in cell or "|" in cell for cell in written)
    if asked and not separated and 2 * sum("," in cell for cell in written) > len(written):
        what = "labels" if isinstance(output, Labels) else "outputs"
        warnings.warn(f"The {what} hold commas: write several labels of a row with ; or | between.", stacklevel=2)


def _where(cells: Cells) -> Callable[[int], str]:
    """The file and the row of a position, in words."""
    return lambda position: f"{cells.table.path}, {cells.table.where(cells.rows[position])}"


def _columns(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} columns ({names[0]} to {names[-1]})"


def _located(cells: Cells, input: Kind) -> Cells:
    return replace(cells, inputs=list(input.located(cells.inputs, cells.table.path.parent)))


def _split(
    good: GoodPairs,
    options: Options,
    columns: tuple[list[str], list[str]],
    input: Kind,
    output: OutputKind,
    kernel: Kernel,
    problems: Problems,
) -> tuple[GoodPairs, GoodPairs | None, str]:
    """The pairs to train on, those held out, from a file of their own or a share, and what became of repeats."""
    if options.valid is not None:
        source = tables.table(options.valid)
        names = common_columns(source, columns[0], "inputs"), common_columns(source, columns[1], "outputs")
        cells = _located(read_cells(options.valid, *names, problems), input)
        valid = good_pairs(cells, input, output, _told(columns), problems)
        return good, defined_pairs(valid, kernel, _told(columns)[1], problems), ""
    if options.validation_fraction == 0:
        return good, None, ""
    held_out = hold_out(good.pairs.X, options.validation_fraction, options.seed, left=LEAST_ROWS // 2)
    train = sorted(set(range(len(good))) - held_out.rows)
    return good.at(train), good.at(sorted(held_out.rows)), held_out.repeats


def _training(options: Options, default: Training) -> Training:
    given = {name: getattr(options, name) for name in ("epochs", "batch_size", "learning_rate", "patience")}
    training = replace(default, **{name: value for name, value in given.items() if value is not None})
    return replace(training, validation_fraction=0.0)  # what is held out is held out here


def _without_lonely_picture(training: Training, n: int, asked: int | None) -> Training:
    """Batches none of which holds a single picture: there, normalising over a batch has no meaning."""
    size = max(2, training.batch_size)
    while n % size == 1:
        size += 1
    if asked is not None and size != asked:
        raise InputError(f"With --batch-size {asked} a batch would hold a single picture. Take {size}.")
    return replace(training, batch_size=size)


def _fingerprint(plan: Plan) -> str:
    """What must be the same for an interrupted training to go on."""
    digest = hashlib.sha256()
    options = {name: str(getattr(plan.options, name)) for name in ("size", "seed", "encoder")}
    parts = {name: str(part) for name, part in plan.parts.items() if name != "device"}
    kinds = plan.input.described(), plan.output.described()
    digest.update(json.dumps([__version__, options, parts, kinds], sort_keys=True).encode())
    for pairs in (plan.train, plan.valid):
        if pairs is not None:
            digest.update(json.dumps([pairs.cells.inputs, pairs.cells.outputs]).encode())
    return digest.hexdigest()


def _prepared(plan: Plan, draft: Path, fingerprint: str, say: Say) -> tuple[selection.SizeCurve | None, int]:
    """The sketch size, and how it was chosen: by an interrupted run of the same fit, if there was one."""
    note = draft / "plan.json"
    if plan.options.restart:
        _remove(draft)
    if note.is_file():
        held = json.loads(note.read_text(encoding="utf-8"))
        if held["fingerprint"] == fingerprint:
            say("  going on with the training that was interrupted")
            return _curve(held["size"]), held["size"]["chosen"]
        if (draft / "last.ckpt").exists():
            raise InputError(
                f"{draft} holds an interrupted training with other data or options. Repeat the same command to go on "
                "with it, or add --restart to give it up."
            )
    curve, size = chosen_size(plan, say)
    with drafted(note) as written:
        facts = {"fingerprint": fingerprint, "size": _size_facts(curve, size)}
        written.write_text(json.dumps(facts), encoding="utf-8")
    return curve, size


def chosen_size(plan: Plan, say: Say) -> tuple[selection.SizeCurve | None, int]:
    """As many training outputs as asked for; by default the fewest that are nearly as good as many, by Perfect h."""
    n = len(plan.train)
    if plan.options.size != "auto":
        return None, int(plan.options.size)
    Y = plan.train.pairs.Y
    if plan.valid is None:
        order = torch.randperm(n, generator=Generator().manual_seed(plan.options.seed))
        held_out, Y = take(Y, order[: max(1, n // 10)]), take(Y, order[max(1, n // 10) :])
    else:
        held_out = take(plan.valid.pairs.Y, slice(HELD_OUT_FOR_SIZE))
    curve = selection.perfect_h(
        plan.kernel,
        Y,
        held_out,
        sketches.SubSample(1),
        choices.sizes(count(Y)),
        generator=Generator().manual_seed(plan.options.seed),
        device=resolve_device(plan.options.device),
    )
    size = selection.choose_size(curve, TOLERANCE)
    say(f"  {'size':<12}{size} of {n:,} outputs make the basis, chosen by Perfect h")
    return curve, size


def _trained(plan: Plan, size: int, draft: Path, say: Say) -> Predictor:
    parts = dict(plan.parts)
    training: Training = parts["training"]
    parts["training"] = replace(training, folder=str(draft), keep_state=True)  # until the model is saved
    validation = None if plan.valid is None else plan.valid.pairs
    started = time.perf_counter()
    try:
        predictor = Predictor.trained(
            plan.train.pairs,
            validation,
            input=plan.input,
            output=plan.output,
            sketch=sketches.SubSample(size),
            **parts,
        )
    except DSOKRError as error:
        if not (draft / "last.ckpt").exists():
            _remove(draft)
        if isinstance(error, TrainingError):
            raise TrainingError(str(error).replace("Training.learning_rate", "--learning-rate")) from error
        raise
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # the writer of checkpoints
            raise
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InputError(
            f"The state of the training cannot be written to {draft}{why}. Is the disk full? Make room, and the same "
            "command goes on."
        ) from error
    predictor.model.training = training
    history = predictor.model.history_
    took = time.perf_counter() - started
    say(f"Trained in {took:.0f} s: epoch {history.best_epoch:.0f} of {len(history.rows)} is kept")
    return predictor


def _facts(plan: Plan, curve: selection.SizeCurve | None, size: int, problems: Problems) -> dict[str, Any]:
    return {
        "dsokr": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "train": plan.options.train.name,
        "columns": {"input": plan.columns[0], "output": plan.columns[1]},
        "chosen": chosen(plan),
        "size": _size_facts(curve, size),
        "rows": {
            "train": len(plan.train),
            "validation": 0 if plan.valid is None else len(plan.valid),
            "skipped": len(problems.found),
        },
    }


def _size_facts(curve: selection.SizeCurve | None, size: int) -> dict[str, Any]:
    if curve is None:
        return {"chosen": size}
    return {"chosen": size, "sizes": list(curve.sizes), "missed": curve.mean().tolist()}


def _curve(facts: dict[str, Any]) -> selection.SizeCurve | None:
    if "sizes" not in facts:
        return None
    return selection.SizeCurve(tuple(facts["sizes"]), torch.tensor([facts["missed"]]), larger_is_better=False)


def _remove(draft: Path) -> None:
    """The state of a training that is over, or given up: only in a folder that this module made, and not its lock."""
    if (draft / "plan.json").is_file():
        for file in sorted(draft.iterdir(), key=lambda file: file.name == "plan.json"):  # that one last
            if file.name != LOCK:
                file.unlink()

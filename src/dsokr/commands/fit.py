"""From a table of pairs to a saved model with its report."""

import json
import re
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from dsokr import __version__
from dsokr.commands import columns
from dsokr.commands.cells import count_of, guess_input, guess_output, parse_numbers
from dsokr.commands.columns import Labels, Molecule, String, Vector
from dsokr.commands.evaluate import evaluate, find_examples, summarize, write_report
from dsokr.commands.kinds import Kind, OutputKind
from dsokr.commands.options import SHARES, FitOptions, Result, Say
from dsokr.commands.predictor import (
    Pairs,
    Predictor,
    check_options,
    make_model,
    parse_kernel,
    parse_part,
    read_pairs,
)
from dsokr.commands.tables import Problems, Rows, Table, write_skipped
from dsokr.compute import resolve_device
from dsokr.conformal import Conformal
from dsokr.errors import InputError, Interrupted, ModelFolderError, suggest
from dsokr.estimator import PARTS
from dsokr.files import check_place, fingerprint, lock_folder, write_json
from dsokr.kernels import Kernel
from dsokr.outputs import as_outputs, distinct, keys
from dsokr.regressors import Auto, Neural, Stack
from dsokr.saving import is_replaceable, write_expression

LEAST_ROWS = 10
NAMED = 12  # the most columns that are all named
CALIBRATED = 200  # validation pairs from which on half of them calibrate


def fit(options: FitOptions, problems: Problems, say: Say) -> Result:
    """Read, choose, train, save and report; say everything that is chosen. Call it again to resume after Ctrl-C."""
    out, draft = options.out, options.out.parent / f".{options.out.name}.unfinished"
    if out.exists() and not is_replaceable(out):
        raise ModelFolderError(f"{out} exists and is not a saved model. Choose another folder with --out.")
    check_place(out)
    resolve_device(options.device)
    check_options(options)
    with lock_folder(draft, "dsokr fit"):
        try:
            predictor = _fit(options, draft, problems, say)
        except KeyboardInterrupt as stop:
            if not (draft / "plan.json").is_file():
                raise
            what = str(stop).partition(". ")[0] or "Stopped"
            raise Interrupted(f"{what}. Run the same command to resume.") from stop
        except Exception as error:
            if not _has_checkpoint(draft):
                _clear(draft)
            if isinstance(error, SafetensorError) or "inline_container" in str(error):  # the writer of checkpoints
                raise InputError(f"{draft} or {out} cannot be written. Is the disk full? ({error})") from error
            raise
        _clear(draft)
    facts = {"model": str(out), "report": str(out / "report.html"), **predictor.facts}
    return Result(facts, [f"The model: {out}", f"The report: {out / 'report.html'}"])


def _fit(options: FitOptions, draft: Path, problems: Problems, say: Say) -> Predictor:
    started = time.perf_counter()
    predictor, pairs, valid, kept = prepare(options, problems)
    _check_replaced(options, predictor, say)
    for name, value in predictor.facts["chosen"].items():
        say(f"  {name:<12}{value}")
    _plan(options, predictor, (pairs, valid, kept), draft, say)
    predictor = _train(predictor, pairs, valid, kept, draft, say)
    if kept is not None:
        predictor = replace(predictor, sure=Conformal(predictor.model).calibrate(kept.X, kept.Y))
    facts: dict[str, Any] = predictor.facts | {
        "dsokr": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "train": options.train.name,
        "rows": {"train": len(pairs), "validation": len(kept or valid or []), "skipped": len(problems.found)},
        "seconds": round(time.perf_counter() - started, 1),
    }
    if (tested := kept or valid) is not None:
        facts |= {"validation": evaluate(predictor, tested), "examples": find_examples(predictor, tested)}
        say(f"Validation: {summarize(facts['validation'], len(tested))}")
    predictor = replace(predictor, facts=facts)

    def write_further(folder: Path) -> None:
        write_report(predictor, folder / "report.html", str(options.out))
        write_skipped(problems, folder / "skipped.csv")

    predictor.save(options.out, write_further)
    return predictor


def prepare(options: FitOptions, problems: Problems) -> tuple[Predictor, Pairs, Pairs | None, Pairs | None]:
    """Read the pairs and choose everything that can be chosen without training.

    Returned are the pairs to train on, to choose by, and to calibrate on.
    """
    table = Table(options.train)
    names = table.find_columns(options.input), table.find_columns(options.output)
    if both := [name for name in names[0] if name in names[1]]:
        raise InputError(f"The column {both[0]!r} is in both --input and --output. Remove it from one of them.")
    group = [] if options.group is None else [options.group]
    rows = table.read(problems, [*names[0], *names[1], *group])
    input = _choose_kind(options.input_kind, "--input-kind", names[0], rows)
    output = _choose_kind(options.output_kind, "--output-kind", names[1], rows)
    is_named = {options.network, options.regressor} != {"auto"} and "Sparse" not in options.network
    if options.input_kind == "auto" and isinstance(input, Vector) and is_named:
        input = replace(input, sparse=False)  # not all that can be named reads sparse rows
    for kind in (input, output):
        if isinstance(kind, Vector) and options.on_error != "skip":
            _check_lengths(kind, rows)
    _warn_of_commas(output, rows.join(names[1]), is_guess=options.output_kind == "auto")
    kernel_text = output.kernel if options.kernel == "auto" else options.kernel
    kernel = parse_kernel(kernel_text)
    input = input.adapt(input.locate(rows.join(names[0]), table.path.parent))
    output = output.suit(kernel).adapt(rows.join(names[1]))
    everything = read_pairs(rows, input, output, kernel, problems, options.group)
    if len(everything) < LEAST_ROWS:
        skipped = f" ({len(problems.found):,} skipped)" if problems.found else ""
        there = f"{count_of(len(everything), 'row')} that can be used{skipped}"
        raise InputError(f"{table.path} has {there}. At least {LEAST_ROWS} are needed.")
    kernel = parse_kernel(kernel_text, everything.Y)
    pairs, valid, repeats = _split(everything, options, input, output, kernel, problems)
    if len(distinct(as_outputs(pairs.Y))) == 1:
        raise InputError(f"All outputs in {', '.join(output.columns)} are the same: there is nothing to learn.")
    if options.size != "auto" and not (options.size.isdigit() and 1 <= int(options.size) <= len(pairs)):
        most = f"the number of training rows, {len(pairs)}"
        raise InputError(f"--size must be auto, or from 1 to {most}. Got {options.size}.")
    _warn_if_known(pairs, valid, output)
    valid, kept = _set_aside(valid, options.seed)
    model = make_model(options, input, output, kernel, pairs.Y)
    predictor = Predictor(model, input, output)
    source, written = f" from {options.valid}" if options.valid else "", model.get_params(deep=False)
    chosen = {
        "rows": f"{len(rows.attempted):,} in {options.train}",
        **{name: _describe(kind) for name, kind in predictor.kinds().items()},
        **{name: write_expression(written[name], *PARTS[name]) for name in ("kernel", "regressor", "decoder")},
        "pairs": f"{len(pairs):,} to train on, {len(valid or []):,} held out for validation{source}{repeats}"
        + (f", {len(kept):,} to calibrate on" if kept is not None else ""),
        "seed": str(options.seed),
    }
    return replace(predictor, facts={"chosen": chosen}), pairs, valid, kept


def _choose_kind(text: str, option: str, names: list[str], rows: Rows) -> Any:
    is_input = option == "--input-kind"
    known: Any = columns.INPUTS if is_input else columns.OUTPUTS
    if text == "auto":
        guess, table = guess_input if is_input else guess_output, rows.table
        text = guess(names, rows.join(names), lambda at: f"{table.path}, {table.place(rows.numbers[at])}")
    is_unknown = text not in known and text.isidentifier() and not isinstance(getattr(columns, text, None), type)
    kind: Any = None if is_unknown else known[text]() if text in known else parse_part(text, columns, option)
    if type(kind) not in known.values():
        raise InputError(f"There is no {option} {text!r}.{suggest(text, known)} Choose from {', '.join(known)}.")
    if not is_input and getattr(kind, "sparse", False):
        raise InputError(f"{option} {text}: only inputs can be sparse.")
    return replace(kind, columns=tuple(names))


def _check_lengths(kind: Vector, rows: Rows) -> None:
    """Refuse lists of different lengths: as vectors, all but those of one length would be lost."""
    if len(kind.columns) > 1:
        return
    first: dict[int, int] = {}  # the first position of every length
    lengths: Counter[int] = Counter()
    for at, cell in enumerate(rows.cells[kind.columns[0]]):
        with suppress(InputError):
            length = len(parse_numbers(cell))
            lengths[length] += 1
            first.setdefault(length, at)
    (usual, times), *others = lengths.most_common(2) or [(0, 0)]
    if others and times < (1 - SHARES["auto"]) * lengths.total():
        places = (f"{count_of(n, 'number')} in row {rows.numbers[first[n]]}" for n in (usual, others[0][0]))
        what = f"The column {kind.columns[0]!r} of {rows.table.path} holds lists of different lengths"
        raise InputError(f"{what}: {', '.join(places)}. A vector has as many numbers in every row.")


def _describe(kind: Kind) -> str:
    names, count = kind.columns, len(kind.columns)
    listed = ", ".join(names) if count <= NAMED else f"{names[0]}, {names[1]}, …, {names[-1]} ({count} columns)"
    return f"{listed} as {'sparse ' * getattr(kind, 'sparse', False)}{kind.name}"


def _warn_of_commas(output: OutputKind, cells: list[str], is_guess: bool) -> None:
    """Warn where labels seem to be separated by commas."""
    texts = set(map(str.strip, cells)) - {""}
    parts = {part.strip() for text in texts for part in text.split(",")}
    may_be_sets = is_guess and isinstance(output, String) and len(parts) <= len(cells) / 5
    has_commas = 2 * sum("," in text for text in texts) > len(texts) and not re.search("[;|]", "".join(texts))
    if has_commas and (may_be_sets or isinstance(output, Labels)):
        warnings.warn("The outputs contain commas: write several labels of a row with ; or | between.", stacklevel=2)


def _split(
    pairs: Pairs, options: FitOptions, input: Kind, output: OutputKind, kernel: Kernel, problems: Problems
) -> tuple[Pairs, Pairs | None, str]:
    """Return the pairs to train on, those held out, from a file of their own or a share, and a note on repeats."""
    if options.valid is not None:
        group = [] if options.group is None else [options.group]
        rows = Table(options.valid).read(problems, [*input.columns, *output.columns, *group])
        return pairs, read_pairs(rows, input, output, kernel, problems, options.group), ""
    if options.validation_fraction == 0:
        return pairs, None, ""
    held_out, note = hold_out(pairs, options.validation_fraction, options.seed)
    return pairs.take(sorted({*range(len(pairs))} - held_out)), pairs.take(sorted(held_out)), note


def _set_aside(valid: Pairs | None, seed: int) -> tuple[Pairs | None, Pairs | None]:
    """Divide validation pairs, if there are many: half to make choices by, and the other half to calibrate and test."""
    if valid is None or len(valid) < CALIBRATED:
        return valid, None
    rows = range(len(valid))
    half = _draw_rows(valid.groups or rows, len(valid) // 2, seed)
    if not half:
        return valid, None
    return valid.take(sorted(half)), valid.take(sorted({*rows} - half))


def hold_out(pairs: Pairs, share: float, seed: int) -> tuple[set[int], str]:
    """Draw the rows to hold out: whole groups or, without groups, rows with equal inputs together, if these fit."""
    n = len(pairs)
    groups: list[Any] = list(keys(pairs.X)) if pairs.groups is None else pairs.groups
    wanted = min(max(1, round(share * n)), n - LEAST_ROWS // 2)
    held_out, there = _draw_rows(groups, wanted, seed), len(set(groups))
    if pairs.groups is not None:
        if not held_out:
            raise InputError(f"--group: all {there} groups are larger than the {share:.0%} of the rows to hold out.")
        return held_out, f"; {count_of(there, 'group')}, none of them in both"
    if not held_out:
        note = f"; inputs repeat, and with {there} different ones those held out are known"
        return _draw_rows(range(n), wanted, seed), note
    return held_out, "; rows with equal inputs are held out together" if there < n else ""


def _draw_rows(groups: Sequence[Any], most: int, seed: int) -> set[int]:
    """Draw at most so many rows in random order: whole groups, skipping those that do not fit."""
    members: dict[Any, list[int]] = {}
    for row in np.random.default_rng(seed).permutation(len(groups)).tolist():
        members.setdefault(groups[row], []).append(row)
    drawn: set[int] = set()
    for some in members.values():
        if len(drawn) + len(some) <= most:
            drawn.update(some)
    return drawn


def _warn_if_known(pairs: Pairs, held_out: Pairs | None, output: OutputKind) -> None:
    """Warn where held-out molecules or strings were mostly trained on: results on new ones will be worse."""
    if held_out is None or held_out.groups is not None or not isinstance(output, Molecule | String):
        return
    trained = set(keys(as_outputs(pairs.Y)))
    known = sum(key in trained for key in keys(as_outputs(held_out.Y)))
    if 2 * known > len(held_out):
        share = f"{known:,} of {len(held_out):,} held-out outputs were also trained on"
        warnings.warn(f"{share}: name a column with --group to hold out all rows of an output.", stacklevel=2)


def _check_replaced(options: FitOptions, predictor: Predictor, say: Say) -> None:
    """Let a new model replace one of the same task; one of another task only with --restart."""
    if not (options.out / "config.json").is_file():
        return
    chosen: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError):
        chosen = json.loads((options.out / "task.json").read_text(encoding="utf-8"))["facts"]["chosen"]
    if not options.restart and any(chosen.get(name) != predictor.facts["chosen"][name] for name in ("input", "output")):
        what = f" ({chosen['input']} to {chosen['output']})" if chosen else ""
        advice = "Choose another folder with --out, or add --restart to replace it."
        raise InputError(f"{options.out} holds a model of another task{what}. {advice}")
    say(f"  {'replaces':<12}the model that is in {options.out} now")


def _plan(options: FitOptions, predictor: Predictor, pairs: tuple[Pairs | None, ...], draft: Path, say: Say) -> None:
    """Record what is trained on which data. Resume an interrupted run of the same; refuse to replace any other."""
    note, model = draft / "plan.json", predictor.model
    data = [some and (some.inputs, some.outputs, some.groups) for some in pairs]
    parts = model.kernel, model.sketch, model.regressor, model.decoder, predictor.input, predictor.output
    identity = fingerprint(__version__, options.seed, parts, data)
    if options.restart:
        _clear(draft)
    held = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    if held.get("fingerprint") == identity:
        say("  resuming the interrupted training")
    elif held and _has_checkpoint(draft):
        raise InputError(
            f"{draft} holds an interrupted training with other data or options. Run the same command as before to "
            "resume it, or add --restart to discard it."
        )
    write_json(note, {"fingerprint": identity})


def _train(
    predictor: Predictor, pairs: Pairs, valid: Pairs | None, kept: Pairs | None, draft: Path, say: Say
) -> Predictor:
    """Train the model; its checkpoints stay in the draft folder until the model is saved."""
    started, model, regressor = time.perf_counter(), predictor.model, predictor.model.regressor
    model.regressor = _keep_training(regressor, str(draft / "training"))
    predictor = predictor.train(pairs, valid, kept)
    model.regressor = regressor
    say(f"Fitted in {time.perf_counter() - started:.0f} s")
    for line in model.report().splitlines():
        say(f"  {line}")
    return predictor


def _keep_training(regressor: Any, folder: str) -> Any:
    """Let networks keep checkpoints in a folder; within a budget, training starts anew."""
    if isinstance(regressor, Auto):
        return regressor if regressor.budget else replace(regressor, folder=folder)
    if isinstance(regressor, Stack):
        members = (_keep_training(member, f"{folder}/{number}") for number, member in enumerate(regressor.members))
        return replace(regressor, members=tuple(members))
    if isinstance(regressor, Neural):
        return replace(regressor, training=replace(regressor.training, folder=folder, keep_state=True))
    return regressor


def _has_checkpoint(draft: Path) -> bool:
    return any(draft.rglob("last.ckpt"))


def _clear(draft: Path) -> None:
    """Remove the checkpoints of a training that is finished or discarded, but not the lock."""
    if (draft / "plan.json").is_file():
        shutil.rmtree(draft / "training", ignore_errors=True)
        (draft / "plan.json").unlink()

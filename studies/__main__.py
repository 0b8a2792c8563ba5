"""The command line of the studies: ``python -m studies NAME`` re-makes a table or figure, ``demo`` is a quick tour."""

import argparse
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from dsokr.compute import resolve_device
from dsokr.errors import DSOKRError, Interrupted
from studies.results import write_table
from studies.study import Session, Study

NAMES = (
    "synthetic",
    "smi2mol",
    "chebi20",
    "multilabel",
    "label_ranking",
    "strings",
    "vectors",
    "guarantees",
    "massbank",
    "fingerprint2graph",
    "coloring",
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m studies", description="Make the paper's tables and figures, and ours.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME", help=", ".join((*NAMES, "demo")))
    demo = commands.add_parser("demo", help="learn to read SMILES, compare with baselines, and write a report")
    demo.add_argument("--out", type=Path, default=Path("dsokr-demo"), help="folder for the report and the model")
    demo.add_argument("--seed", type=int, default=0)
    for name in NAMES:
        study = commands.add_parser(name)
        study.add_argument("--reduced", action="store_true", help="a smaller study, for two cores")
        study.add_argument("--data-dir", type=Path, help="folder of the data sets (default: DSOKR_DATA, or the cache)")
        study.add_argument("--results", type=Path, default=Path("results"), help="folder of results; old ones are kept")
        study.add_argument("--figure", type=Path, help="where to draw the figure (default: beside the results)")
        study.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    for command in commands.choices.values():
        command.add_argument("--quick", action="store_true", help="the same code on a small task, in a minute or two")
        command.add_argument("--json", action="store_true", help="print JSON; progress goes to standard error")
    return parser


def main(arguments: list[str] | None = None) -> None:
    options = make_parser().parse_args(arguments)

    def say(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        (run_demo if options.name == "demo" else run_study)(options, say)
    except DSOKRError as error:
        sys.exit(f"Error: {error}")
    except (Interrupted, KeyboardInterrupt) as stop:
        print(stop or "Interrupted.", "Run the same command to resume.", file=sys.stderr)
        sys.exit(130)


def run_demo(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    from studies import demo

    made = demo.run(options.out, demo.QUICK if options.quick else demo.FULL, options.seed, say)
    text = f"{write_table(demo.COLUMNS, made['rows'])}\nThe report: {made['report']}"
    print(json.dumps(made) if options.json else text)


def run_study(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    study: Study = import_module(f"studies.{options.name}").STUDY
    size = "quick" if options.quick else "reduced" if options.reduced else "full"
    session = Session(options.results / study.folder(size), options.data_dir, resolve_device(options.device), say)
    study.execute(size, session)
    rows = study.tabulate(session.folder)
    figure = study.draw(session.folder, options.figure or session.folder / "figure.png")
    answer = {"rows": rows, "figure": str(figure)}
    print(json.dumps(answer) if options.json else f"{write_table(study.columns, rows)}\nThe figure: {figure}")


if __name__ == "__main__":
    main()

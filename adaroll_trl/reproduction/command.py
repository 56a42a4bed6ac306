"""`scripts/reproduce.py`: runs the cells of the tables, or goes on with them, and prints the tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ..evaluation.command import make_console
from ..run_folder import checkpoint_step
from .cells import Cell, EvalOptions, Plan
from .paper import DATASETS, METHODS, MODELS, OF_PAPER, TABLES
from .runner import InProcessRunner, Runner, SubprocessRunner, run_cell
from .table import as_csv, make_rows, markdown, notes, rich_tables


@dataclass
class ReproduceSettings:
    """Which cells to run, and how.

    Raises:
        ValueError: if a value cannot be, naming the field and what would be right.
    """

    table: list[int] = field(
        default_factory=lambda: [*OF_PAPER],
        metadata={
            "help": "1: six utilities, three models; 2: three losses; 3, not the paper's: prompts that come back."
        },
    )
    models: list[str] = field(default_factory=list, metadata={"help": f"Only these of {', '.join(MODELS)}."})
    datasets: list[str] = field(default_factory=list, metadata={"help": f"Only these of {', '.join(DATASETS)}."})
    methods: list[str] = field(default_factory=list, metadata={"help": f"Only these of {', '.join(METHODS)}."})
    seeds: list[int] = field(default_factory=list, metadata={"help": "Of the training. Default: the recipes' own."})
    max_steps: int | None = field(default=None, metadata={"help": "Training steps, instead of the recipes' epochs."})
    gradient_accumulation_steps: int | None = field(
        default=None,
        metadata={"help": "Instead of the recipes' 8, which is for 8 GPUs: 64 / GPUs gives the same batch."},
    )
    launch: str = field(
        default="",
        metadata={"help": "Starts each training: 'accelerate launch --config_file recipes/accelerate/zero3.yaml'."},
    )
    output_dir: str = field(default="outputs/reproduce", metadata={"help": "A folder for each cell goes into it."})
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with data sets by name; those not there are read from the Hub."}
    )
    eval_backend: Literal["transformers", "vllm"] = field(default="transformers", metadata={"help": "For evaluation."})
    eval_samples: int = field(default=1, metadata={"help": "Completions of each test prompt; one is greedy."})
    eval_limit: int | None = field(default=None, metadata={"help": "Only the first so many test prompts."})
    tiny: bool = field(default=False, metadata={"help": "Twins of the models and of the data, generated here."})
    dry_run: bool = field(default=False, metadata={"help": "List the cells and how far each is."})

    def __post_init__(self) -> None:
        for name, known in (("table", TABLES), ("models", MODELS), ("datasets", DATASETS), ("methods", METHODS)):
            unknown = [one for one in getattr(self, name) if one not in known]
            if unknown:
                raise ValueError(f"{name}={unknown[0]!r} must be one of {', '.join(map(str, known))}.")
        for name in ("table", "models", "datasets", "methods", "seeds"):
            given = getattr(self, name)
            twice = [one for one in given if given.count(one) > 1]
            if twice:
                raise ValueError(f"{name}={given} holds {twice[0]!r} twice: give each once.")
        for name in ("max_steps", "gradient_accumulation_steps", "eval_samples", "eval_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self.data_dir is not None and not Path(self.data_dir).is_dir():
            raise ValueError(f"data_dir={self.data_dir!r}: there is no such folder.")
        for name in ("launch", "data_dir", "gradient_accumulation_steps"):
            if self.tiny and getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect with tiny=True, which runs in this process on "
                    "data and with a batch of its own."
                )


def main(root: Path, arguments: Sequence[str] | None = None) -> int:
    """Run the command from the folder `root` of the project; bad input ends with one sentence and exit status 2."""
    try:
        return reproduce(parse(arguments), root)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def make_parser() -> Any:
    """`--config` names a YAML file, and the command line stands over it."""
    from ..parsing import NamingParser

    return NamingParser(
        [ReproduceSettings],
        prog="reproduce.py",
        description="Trains and evaluates the cells of the paper's tables, or of ours, and prints them beside its "
        "figures. The same command goes on where it was interrupted.",
    )


def parse(arguments: Sequence[str] | None) -> ReproduceSettings:
    """Settings from the command line.

    Raises:
        ValueError: for an unknown option, naming the nearest one, and for a value that cannot be.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed: Any = make_parser().parse_args_and_config(args=given, fail_with_unknown_args=True)
    return parsed[0]


def reproduce(settings: ReproduceSettings, root: Path) -> int:
    """0 if every cell is done (or nothing was to be run), 1 if one failed."""
    console = make_console()
    plan = make_plan(settings, root)
    tables = {number: select(settings, plan, number) for number in settings.table}
    cells = list({cell.folder: cell for cells in tables.values() for cell in cells}.values())
    _check_data(settings, plan, cells)
    if settings.dry_run:
        print("\n".join(_states(tables)))
        return 0
    for number in tables:  # a table of runs with different settings would compare what cannot be compared
        for cell in plan.begun(number):
            cell.check()
    if settings.tiny:
        _prepare_twins(Path(settings.output_dir), console)
    runner: Runner = InProcessRunner() if settings.tiny else SubprocessRunner(root, settings.launch)
    failures = run_all(cells, runner, lambda text: console.print(text, highlight=False, soft_wrap=True))
    for number in tables:
        of_table = list(plan.begun(number))  # earlier runs of other cells too: their rows are not lost
        rows = make_rows(number, of_table, failures)
        for table in rich_tables(rows):
            console.print(table)
        below = notes(rows, of_table, failures)
        console.print("\n".join(below), highlight=False)
        text = "\n".join([markdown(rows), *below, ""])
        for suffix, content in (("md", text), ("csv", as_csv(rows))):
            (Path(settings.output_dir) / f"{plan.table_name(number)}.{suffix}").write_text(content, encoding="utf-8")
    console.print(f"Tables as Markdown and CSV: {settings.output_dir}", highlight=False, soft_wrap=True)
    return 1 if failures else 0


def make_plan(settings: ReproduceSettings, root: Path) -> Plan:
    """The plan that the settings describe; recipes are in `root`."""
    output_dir = Path(settings.output_dir)
    evaluation = EvalOptions(settings.eval_samples, settings.eval_backend, settings.eval_limit)
    common: dict[str, Any] = {"recipes": root / "recipes", "output_dir": output_dir, "seeds": settings.seeds or None}
    if not settings.tiny:
        return Plan(
            **common,
            max_steps=settings.max_steps,
            sources=_sources(settings.data_dir),
            overrides={"gradient_accumulation_steps": settings.gradient_accumulation_steps},
            evaluation=evaluation,
        )
    from .tiny import OVERRIDES, REPLACEMENTS

    return Plan(
        **common,
        max_steps=settings.max_steps or 2,
        sources={name: str(output_dir / "data" / name) for name in DATASETS},
        models={name: str(output_dir / "twins" / name) for name in MODELS},
        overrides=OVERRIDES,
        replacements=REPLACEMENTS,
        evaluation=evaluation,
    )


def select(settings: ReproduceSettings, plan: Plan, table: int) -> list[Cell]:
    return list(plan.cells(table, settings.models, settings.datasets, settings.methods))


def run_all(cells: Sequence[Cell], runner: Runner, say: Callable[[str], None]) -> dict[Path, str]:
    """Run cell after cell, and go on behind one that fails. The reasons, by the folder of the cell that failed."""
    failures: dict[Path, str] = {}
    for number, cell in enumerate(cells, start=1):
        before = cell.state()
        if before == "done":
            continue
        reason = run_cell(cell, runner)
        if reason is not None:
            failures[cell.folder] = reason
        outcome = "done" if reason is None else f"failed: {reason}; log: {cell.log}"
        say(f"{number}/{len(cells)} {cell.name} ({before}): {outcome}")
    return failures


def _prepare_twins(output_dir: Path, console: Console) -> None:
    """Once: a run that goes on needs the twins that it began with."""
    from .tiny import build_twins, write_data

    whole = output_dir / "twins" / "complete"
    if not whole.exists():
        console.print("building the twins", highlight=False)
        write_data(output_dir / "data")
        build_twins(output_dir / "twins", output_dir / "data")
        whole.touch()


def _sources(data_dir: str | None) -> dict[str, str]:
    """The data sets of a folder, by name."""
    found = {} if data_dir is None else {name: Path(data_dir) / name for name in DATASETS}
    return {name: str(path) for name, path in found.items() if path.exists()}


def _check_data(settings: ReproduceSettings, plan: Plan, cells: Sequence[Cell]) -> None:
    """CoLoTa is on no hub; better to say so before hours of training on the others."""
    if any(cell.dataset == "colota" for cell in cells) and "colota" not in plan.sources:
        raise ValueError(
            f"data_dir={settings.data_dir!r} has no folder 'colota', which is not on the Hub either: put the authors' "
            "CoLoTa_qa.json into one, or choose --datasets without it."
        )


def _states(tables: dict[int, list[Cell]]) -> Iterator[str]:
    """A line for each cell: table, state, step of its last checkpoint, name."""
    yield f"table  {'state':<14}  steps  cell"
    for number, cells in tables.items():
        for cell in cells:
            checkpoint = cell.last_checkpoint()
            steps = "" if checkpoint is None else str(checkpoint_step(checkpoint))
            yield f"{number:<5}  {cell.state():<14}  {steps:>5}  {cell.name}"

"""The cells of the tables: which recipe each runs, in which folder, and how far it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from ..evaluation.store import RESULTS
from ..files import write_json
from ..run_folder import LOG_FILE, checkpoints_in
from .paper import DATASETS, METHODS, TABLES, Method

State = Literal["to do", "begun", "trained", "done", "other settings"]
SETTINGS, TRAINED = "settings.json", "trained.json"
_OF_UNTRAINED = ("model_name_or_path", "task", "dataset_name", "max_completion_length")


@dataclass(frozen=True)
class EvalOptions:
    """How cells are evaluated.

    Args:
        num_samples (`int`): completions of each test prompt; one is greedy.
        backend (`str`): `"transformers"` or `"vllm"`.
        limit (`int` or `None`): only the first so many test prompts.
    """

    num_samples: int = 1
    backend: str = "transformers"
    limit: int | None = None

    @property
    def folder(self) -> str:
        """Results of other options stand beside these."""
        first = "" if self.limit is None else f"-first-{self.limit}"
        return f"eval-{self.backend}-{self.num_samples}{first}"


@dataclass(frozen=True)
class Cell:
    """One training run and its evaluation, or the evaluation of an untrained model.

    Attributes:
        model, dataset (`str`): the recipe's folders.
        method (`Method`): what is trained.
        seed (`int`): of the training; 0 for an untrained model, which has none.
        folder (`Path`): what the cell leaves behind.
        recipe (`Path`): the YAML file that holds its settings.
        overrides (`dict`): instead of the recipe's.
        evaluation (`EvalOptions`): how it is evaluated.
    """

    model: str
    dataset: str
    method: Method
    seed: int
    folder: Path
    recipe: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvalOptions = EvalOptions()

    @property
    def name(self) -> str:
        """`model/dataset/method/seed-0`."""
        return "/".join(self.folder.parts[-4:])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recipe with the overrides: all that the cell depends on, but for the output folder."""
        recipe = yaml.safe_load(self.recipe.read_text(encoding="utf-8"))
        settings = {**recipe, **self.overrides}
        left_out = {"output_dir"} if self.method.trained else set(settings) - set(_OF_UNTRAINED)
        return {name: value for name, value in settings.items() if name not in left_out}

    @property
    def digest(self) -> str:
        """SHA-256 of the settings."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    @property
    def trained_model(self) -> str:
        """What is evaluated: the folder that the training leaves, or the untrained model."""
        return str(self.folder / "train") if self.method.trained else str(self.settings["model_name_or_path"])

    @property
    def results(self) -> Path:
        """The folder of its `results.json`."""
        return self.folder / self.evaluation.folder / str(self.settings["task"])

    @property
    def log(self) -> Path:
        """What its commands printed."""
        return self.folder / "log.txt"

    def state(self) -> State:
        """How far the cell is, by what is in its folder."""
        if not (self.folder / SETTINGS).exists():
            return "to do"
        if self._found(SETTINGS) != self.digest:
            return "other settings"
        if (self.results / RESULTS).exists():
            return "done"
        return "trained" if self._found(TRAINED) == self.digest else "begun"

    def check(self) -> None:
        """Raise a ValueError if the folder holds a run of other settings, with those that differ."""
        if self.state() == "other settings":
            found = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))["settings"]
            own = self.settings
            names = [name for name in {**found, **own} if found.get(name) != own.get(name)]
            changed = ", ".join(f"{name}={found.get(name)!r}, now {own.get(name)!r}" for name in names)
            raise ValueError(
                f"{self.folder} holds a run with {changed}: choose another output_dir, or delete that folder."
            )

    def begin(self) -> None:
        """Note the settings, so that a later run with others does not go on here.

        Raises:
            ValueError: if the folder holds a run of other settings.
        """
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._note(SETTINGS)

    def note_trained(self) -> None:
        """The training is complete: it will not be run again."""
        self._note(TRAINED)

    def last_checkpoint(self) -> Path | None:
        """The newest whole checkpoint of an interrupted training, or None. The trainer's state is written last."""
        return next((path for path in checkpoints_in(self.folder / "train") if (path / LOG_FILE).exists()), None)

    def _note(self, name: str) -> None:
        write_json(self.folder / name, {"digest": self.digest, "settings": self.settings}, indent=1)

    def _found(self, name: str) -> str | None:
        path = self.folder / name
        return str(json.loads(path.read_text(encoding="utf-8"))["digest"]) if path.exists() else None


@dataclass(frozen=True)
class Plan:
    """Which cells to run, and from where.

    Args:
        recipes (`Path`): the folder with `<model>/<dataset>/<recipe>.yaml`.
        output_dir (`Path`): where cells go.
        seeds (sequence of `int`, or `None`): None takes each recipe's own seed.
        max_steps (`int` or `None`): instead of the recipes' epochs.
        sources (`dict`): local data sets by name; others come from the Hub.
        models (`dict`): model folders or ids to use instead of the recipes', by the recipe's model.
        overrides (`dict`): further settings of every training.
        replacements (`dict`): instead of a recipe's values, where the recipe has one.
        evaluation (`EvalOptions`): how the cells are evaluated.
    """

    recipes: Path
    output_dir: Path
    seeds: Sequence[int] | None = None
    max_steps: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    replacements: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvalOptions = EvalOptions()

    def cells(
        self, table: int, models: Sequence[str] = (), datasets: Sequence[str] = (), methods: Sequence[str] = ()
    ) -> Iterator[Cell]:
        """The cells of a table, in the order of its rows; of each list only what is in it, all if it is empty."""
        of_table, rows = TABLES[table]
        for model in (one for one in of_table if not models or one in models):
            for dataset in (one for one in DATASETS if not datasets or one in datasets):
                for method in (one for one in rows if not methods or one in methods):
                    yield from self._of_method(model, dataset, METHODS[method])

    def table_name(self, table: int) -> str:
        """The table's file without its suffix: figures of another evaluation stand in a file of their own."""
        return f"table_{table}" + ("" if self.evaluation == EvalOptions() else f"-{self.evaluation.folder}")

    def begun(self, table: int) -> Iterator[Cell]:
        """The cells of a table that were ever begun in `output_dir`, with whatever seed, in the order of its rows."""
        numbers = (path.name.removeprefix("seed-") for path in self.output_dir.glob("*/*/*/seed-*"))
        everything = replace(self, seeds=sorted({int(number) for number in numbers if number.isdecimal()}))
        return (cell for cell in everything.cells(table) if cell.state() != "to do")

    def _of_method(self, model: str, dataset: str, method: Method) -> Iterator[Cell]:
        recipe = self.recipes / model / dataset / f"{method.recipe}.yaml"
        own = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        for seed in (self.seeds or [own["seed"]]) if method.trained else [0]:
            overrides = {
                "model_name_or_path": self.models.get(model),
                "dataset_name": self.sources.get(dataset),
                "seed": seed if method.trained else None,
                **method.settings,
                "max_steps": self.max_steps,
                **self.overrides,
                **{name: value for name, value in self.replacements.items() if name in own},
            }
            given = {name: value for name, value in overrides.items() if value is not None}
            folder = self.output_dir / model / dataset / method.name / (f"seed-{seed}" if method.trained else "once")
            yield Cell(model, dataset, method, seed, folder, recipe, given, self.evaluation)

"""README and docs say what is true: their Python runs, their commands exist, their links lead somewhere.

The Python blocks of a page run one after the other in one namespace, with tiny stand-ins for what a reader has: a
model, a data set, rewards, and a trainer that has trained for a step. What a block prints must be the text block right
below it, if there is one. A block that starts with the name of a file is that file. None is left out.

Commands are not run: most need a GPU, a download, or minutes. Their paths must be here, and this project's own
commands must parse with the options and values that they are given. Text that shows what a command printed is not
checked.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
MODEL_ID = re.compile(r'"[\w.-]+/[\w.-]+"(?=, reward_funcs)')
# What a page's configs leave open, so that they take a step or two of a tiny model on a CPU
TINY = {
    "max_steps": 1,
    "max_completion_length": 4,
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
}


@dataclass
class Block:
    page: Path
    line: int
    language: str
    text: str
    printed: str | None  # the text block right below it


def blocks_of(page: Path) -> list[Block]:
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    text = page.read_text()
    found: list[Block] = []
    end = 0
    for match in fence.finditer(text):
        if match[1] == "text" and found and found[-1].language == "python" and not text[end : match.start()].strip():
            found[-1].printed = match[2]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match[1], match[2], None))
        end = match.end()
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))]
COMMANDS = [block for page in PAGES for block in blocks_of(page) if block.language == "bash"]


@pytest.fixture
def reader(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a page takes for granted: the names that its reader's own script has."""
    import adaroll_trl
    from tests.tiny import parity_reward, sums_dataset

    def accuracy_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return parity_reward(completion_ids, completion_ids)

    def format_reward(completions: list[Any], **kwargs: Any) -> list[float]:
        return [1.0] * len(completions)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {name: getattr(adaroll_trl, name) for name in adaroll_trl.__all__}
    config = adaroll_trl.AdaRollGRPOConfig(output_dir="out", num_generations=4, per_device_train_batch_size=8, **TINY)
    rewards = {"accuracy_reward": accuracy_reward, "format_reward": format_reward}
    given = {"config": config, "dataset": sums_dataset(48), "TINY": TINY, "__name__": "page"}
    return {**names, **rewards, **given, "MODEL": str(model_dir)}


def runnable(text: str) -> str:
    """The block with the reader's own model, and with configs that are done in a step."""
    text = MODEL_ID.sub("MODEL", text)
    return re.sub(r"(\w*GRPOConfig)\((?=\s*(output_dir|\*\*))", r"\1(**TINY, ", text)


def trained(reader: dict[str, Any]) -> Any:
    """The trainer of a reader's own script, after a step."""
    config = reader["AdaRollGRPOConfig"](
        output_dir="out", num_generations=4, per_device_train_batch_size=8, logging_steps=1, **TINY
    )
    trainer = reader["AdaRollGRPOTrainer"](
        model=reader["MODEL"], reward_funcs=reader["accuracy_reward"], args=config, train_dataset=reader["dataset"]
    )
    trainer.train()
    return trainer


def same_but_for_rounding(text: str, other: str) -> bool:
    """Whether two texts agree, but for decimal fractions within 1 in the last place, or 2 %.

    Processors round differently, and where two decisions are equally good the simulator then takes the other one.
    """
    decimal = r"\d+\.\d+"
    if re.sub(decimal, "", text) != re.sub(decimal, "", other):
        return False
    for one, two in zip(re.findall(decimal, text), re.findall(decimal, other), strict=True):
        places = len(one.partition(".")[2])
        tolerance = max(Decimal(1).scaleb(-places), Decimal("0.02") * Decimal(one))
        if places != len(two.partition(".")[2]) or abs(Decimal(one) - Decimal(two)) > tolerance:
            return False
    return True


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_blocks(page, reader):
    for block in blocks_of(page):
        if block.language != "python":
            continue
        if "trainer" not in reader and re.search(r"\btrainer\b", block.text.split("trainer = ")[0]):
            reader["trainer"] = trained(reader)
        out = io.StringIO()
        code = compile("\n" * block.line + runnable(block.text), name(page), "exec", dont_inherit=True)
        if file := re.match(r"# (\w+\.py)\n", block.text):
            Path(file[1]).write_text(block.text)
        with contextlib.redirect_stdout(out):
            exec(code, reader)
        if block.printed is not None:
            agree = same_but_for_rounding if "simulate(" in block.text else str.__eq__
            assert agree(out.getvalue(), block.printed), f"{name(page)}, line {block.line}, prints\n{out.getvalue()}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_escapes(page):
    """Each fence is seen, and of a kind that is checked, or text."""
    blocks = blocks_of(page)
    assert 2 * len(blocks) == len(re.findall(r"^ *(?:```|~~~)", page.read_text(), re.MULTILINE))
    assert {block.language for block in blocks} <= {"python", "bash", "text"}


def test_that_the_blocks_are_looked_at(tmp_path, reader):
    """A block that fails, or prints something else than the page says, is seen."""
    page = tmp_path / "page.md"
    page.write_text("a\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    (first, _) = blocks_of(page)
    assert (first.printed, first.line) == ("3\n", 3)
    assert same_but_for_rounding("mass 17.4 2\n", "mass 17.2 2\n")
    assert same_but_for_rounding("mass 0.4 2\n", "mass 0.5 2\n")
    assert not same_but_for_rounding("mass 0.4 2\n", "mass 0.6 2\n")
    for changed in ("mass 17.0 2\n", "mass 17.30 2\n", "mass 17.4 3\n", "mass 17.4\n", "mean 17.4 2\n"):
        assert not same_but_for_rounding("mass 17.4 2\n", changed)
    assert runnable('GRPOTrainer(model="a/b", reward_funcs=f)') == "GRPOTrainer(model=MODEL, reward_funcs=f)"
    assert runnable("AdaRollGRPOConfig(output_dir=1)") == "AdaRollGRPOConfig(**TINY, output_dir=1)"


# Commands


def parser_of(program: str) -> argparse.ArgumentParser | None:
    """Of a command of this project; None for a script that parses by itself."""
    from adaroll_trl import cli
    from adaroll_trl.evaluation.command import make_parser as make_eval_parser
    from adaroll_trl.gpu_check.__main__ import build_parser
    from adaroll_trl.report.command import make_parser as make_report_parser
    from adaroll_trl.reproduction.command import make_parser as make_reproduce_parser
    from adaroll_trl.simulation.command import make_plan_parser, make_simulate_parser
    from adaroll_trl.training.arguments import make_parser

    commands = next(a.choices for a in cli.build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    parsers = {"train": make_parser, "eval": make_eval_parser, "report": make_report_parser}
    parsers |= {"simulate": make_simulate_parser, "plan": make_plan_parser}
    parsers |= {"gpu_check": build_parser, "reproduce": make_reproduce_parser}
    parsers |= {name: (lambda parser=parser: parser) for name, parser in commands.items() if name not in parsers}
    script = re.fullmatch(r"scripts/(train|eval|reproduce|demo|gpu_check)\.(?:py|sh)", program)
    key = script[1] if script else program.removeprefix("adaroll ")
    return parsers[key]() if key in parsers else None


def check_arguments(program: str, arguments: list[str]) -> None:
    """They parse, with values of the right types; of a script without a parser that can be had, the options exist."""
    parser = parser_of(program)
    if parser is None:
        options = {word.split("=")[0] for word in arguments if word.startswith("--")} - {"--help"}
        known = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", (ROOT / program).read_text()))
        assert options <= known, f"{program} has no {options - known}"
        return
    if "--config" in arguments and "--config" not in parser._option_string_actions:  # TRL's reads it beforehand
        place = arguments.index("--config")
        arguments = arguments[:place] + arguments[place + 2 :]
    for action in parser._actions:
        action.required = False  # a recipe may give it
    parser.parse_args(arguments)


PASS_ON = {"scripts/test.sh", "scripts/test_vllm.sh"}  # further arguments are pytest's


def words_of(block: Block) -> Iterator[list[str]]:
    joined = block.text.replace("\\\n", " ")
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: f"{name(block.page)}:{block.line}")
def test_commands(block):
    """A path of this repository in a command is there, and a command of this project takes what it is given."""
    for words in words_of(block):
        program = next((w for w in words if re.fullmatch(r"(scripts|benchmarks)/[\w/]+\.(sh|py)", w)), None)
        start = words.index(program) if program else 0
        if words[0] == "adaroll":
            program, start = " ".join(words[:2]), 1
        if words[:3] == ["python", "-m", "adaroll_trl"]:
            program, start = f"adaroll {words[3]}", 3
        if words[0].startswith("--"):  # to add to a recipe's command
            program, start = "adaroll train", -1
        for word in words:
            if re.match(r"(scripts|benchmarks|recipes|tests|docs)/[\w./-]*$", word) and "<" not in word:
                assert (ROOT / word).exists(), f"{word} is not there"
        if program is not None and program not in PASS_ON:
            check_arguments(program, words[start + 1 :])


def test_that_arguments_are_looked_at():
    for program, arguments in (
        ("adaroll train", ["--rounds", "two"]),
        ("adaroll simulate", ["--allocator", "uniform"]),
    ):
        with pytest.raises((SystemExit, ValueError)):
            check_arguments(program, arguments)
    with pytest.raises(AssertionError, match=r"has no \{'--nothing'\}"):
        check_arguments("scripts/cero_regret.py", ["--nothing=1"])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page):
    """Each relative link of a page leads to a file."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), target


def test_options_page_names_every_field():
    from dataclasses import fields

    from adaroll_trl.config import AdaRollOptions
    from adaroll_trl.utilities import UTILITY_NAMES

    text = (ROOT / "docs" / "options.md").read_text()
    assert all(f"`{field.name}`" in text for field in fields(AdaRollOptions))
    assert all(f"`{utility}`" in text for utility in UTILITY_NAMES)


def test_allocators_page_names_every_option_of_an_allocator():
    from adaroll_trl.allocators import ALLOCATOR_NAMES, own_options

    table = (ROOT / "docs" / "allocators.md").read_text().partition("| `allocator` | option |")[2].partition("\n\n")[0]
    named: dict[str, set[str]] = {}
    allocators: list[str] = []
    for line in table.splitlines()[2:]:
        first, option = (re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:3])
        allocators = first or allocators
        for allocator in allocators:
            named.setdefault(allocator, set()).update(option)
    assert named == {name: set(own_options(name)) for name in ALLOCATOR_NAMES if own_options(name)}


def test_results_have_the_figures_of_the_learning_benchmark():
    """Final pass@1 of each arm is as the benchmark's own page has it; what is bold is for a reader to judge."""

    def cells(line):
        return [cell.strip(" `*()") for cell in line.strip("|").split("|")]

    printed = (ROOT / "docs" / "results" / "learning.md").read_text()
    results = (ROOT / "docs" / "results.md").read_text()
    compared = 0
    for head, sections in {
        "| arm | HHR | HR | UR |": ("HHR: .*", "HR: .*", "UR: .*"),
        "| arm, fresh prompts | HH | H | U | HH, 128 prompts |": (
            "HH: .*",
            "H: .*",
            "U: .*",
            "One factor changed: P128-fresh\n\nHH:",
        ),
        "| arm, HHR | 4 rollouts | 16 rollouts | 128 prompts | minimum 1 | minimum 4 | 2 rounds | 4 rounds |": tuple(
            f"One factor changed: {factor}\n\nHHR:"
            for factor in ("G4", "G16", "P128", "min1", "min4", "rounds2", "rounds4")
        ),
    }.items():
        lines = results.partition(f"\n{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
        named = [(re.findall(r"`([\w-]+)`", line.split("|")[1]), cells(line)[1:]) for line in lines]
        arms = {names[-1]: of_arm for names, of_arm in named if names}
        assert arms, head
        for place, section in enumerate(sections):
            table = re.search(rf"^## {section}\n\n((?:\|.*\n)+)", printed, re.MULTILINE)[1].splitlines()[2:]
            for arm, seeds, final, *_ in map(cells, table):
                if arm in arms and arms[arm][place]:
                    wanted = final if seeds == "8" else f"{final}, {seeds} seeds"
                    assert arms[arm][place] == wanted, f"docs/results.md: {arm}, {section}"
                    compared += 1
    assert compared > 90


# Docstrings

EXAMPLES = sorted(path for path in (ROOT / "adaroll_trl").rglob("*.py") if "\n    >>> " in path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_examples_in_docstrings(path):
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    results = doctest.testmod(module)
    assert results.attempted
    assert results.failed == 0

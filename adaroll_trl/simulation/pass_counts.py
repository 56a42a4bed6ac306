"""How often each prompt was solved, read from files, and the distribution of pass rates behind such counts.

A pass rate of few rollouts is spread wider than the chance of success that it estimates: of prompts that all succeed
half of the time, one in 128 shows 8 of 8. The distribution of the chances is therefore fitted to the counts. In the
likelihood of a prompt with s of n, the integral of p^s (1 - p)^(n - s) over the distribution, it does not matter how n
was decided: counts of an adaptive run, where n depends on the outcomes, are fitted without bias. Raw rates are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import betaln, digamma, xlog1py, xlogy

from ..batch import TABLE_COLUMNS
from ..values import is_number
from .difficulty import Difficulty, beta, histogram, mixture, point, rates

FITS = ("mixture", "beta", "raw")
HISTOGRAMS = Path(__file__).parent / "histograms"

_NO_REWARDS = {"step", "advantage", *TABLE_COLUMNS}
_LOWEST, _HIGHEST = 1e-3, 1e4  # parameters of a fitted Beta
_GRID = 101  # pass rates of a fitted mixture
_MOST = 10**7  # rollouts of a prompt in a file: more is a mistake, and too much for a fit
_KNOWN_FILES = (
    "a completions table of a run (.parquet or .csv, or the folder of them), results.json of `adaroll eval`, a table "
    "with columns successes and rollouts or pass_rate, a JSON list of pass rates, or JSON with samples and prompts "
    "(how many prompts had 0, 1, ... of the samples right)"
)


@dataclass(frozen=True)
class PassCounts:
    """Successes and rollouts of prompts.

    Attributes:
        successes, rollouts (int arrays of shape (prompts,)): every prompt has at least one rollout.
    """

    successes: NDArray[np.int64]
    rollouts: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.rollouts.size == 0:
            raise ValueError("there must be at least one prompt, with at least one rollout.")
        wrong = (self.rollouts < 1) | (self.successes < 0) | (self.successes > self.rollouts)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"row {row + 1} has {self.successes[row]} successes of {self.rollouts[row]} rollouts: a prompt needs "
                "at least one rollout, and its successes must be between 0 and its rollouts."
            )

    def difficulty(self, fit: str = "mixture", label: str | None = None) -> Difficulty:
        """The distribution of pass rates behind the counts.

        Args:
            fit (`str`): "mixture" is the mixture of pass rates 0, 0.01, ..., 1 of the largest likelihood (Kiefer and
                Wolfowitz 1956; by expectation maximisation): it holds hopeless and solved prompts apart, and follows
                the noise of few prompts. "beta" is the Beta of the largest marginal likelihood: smooth, but one shape.
                "raw" takes the rates as they are: with few rollouts it is too wide.
            label (`str`, *optional*): how tables name it.
        """
        if fit not in FITS:
            raise ValueError(f"fit={fit!r} is not known. Use one of {', '.join(FITS)}.")
        if fit == "raw":
            found = rates(self.successes / self.rollouts)
        else:
            found = beta(*self.fit_beta()) if fit == "beta" else self.fit_mixture()
        shape = found.label if fit == "beta" else f"{fit} of {len(found.parts)} pass rates"
        return Difficulty(found.weights, found.parts, f"{label or f'{self.rollouts.size:,} prompts'} ({shape})")

    def log_likelihood(self, difficulty: Difficulty) -> float:
        """Log of the chance of these counts, up to what does not depend on the distribution."""
        total = 0.0
        for n in np.unique(self.rollouts).tolist():
            chances = difficulty.success_chances(n)
            with np.errstate(divide="ignore"):
                total += float(np.log(chances[self.successes[self.rollouts == n]]).sum())
        return total

    def fit_beta(self) -> tuple[float, float]:
        """The Beta(a, b) of the largest marginal likelihood."""
        pairs, copies = np.unique(np.stack([self.successes, self.rollouts], axis=1), axis=0, return_counts=True)
        s, n = pairs.T

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            """Minus the mean log likelihood at log a, log b, and its gradient."""
            a, b = np.exp(x)
            both = digamma(a + b + n) - digamma(a + b)
            slopes = [digamma(a + s) - digamma(a) - both, digamma(b + n - s) - digamma(b) - both]
            gradient = np.array([a * (copies @ slopes[0]), b * (copies @ slopes[1])])
            value = float(copies @ (betaln(a + s, b + n - s) - betaln(a, b)))
            return -value / copies.sum(), -gradient / copies.sum()

        mean = min(max(float(self.successes.sum() / self.rollouts.sum()), 1e-3), 1 - 1e-3)
        bounds = [(np.log(_LOWEST), np.log(_HIGHEST))] * 2
        precise = {"ftol": 0.0, "gtol": 1e-11}
        found = minimize(loss, np.log([mean, 1 - mean]), jac=True, bounds=bounds, method="L-BFGS-B", options=precise)
        a, b = np.exp(found.x).tolist()
        return a, b

    def fit_mixture(self) -> Difficulty:
        """Shares of the pass rates 0, 0.01, ..., 1 of the largest likelihood; those below 1e-4 are dropped."""
        grid = np.linspace(0.0, 1.0, _GRID)
        pairs, copies = np.unique(np.stack([self.successes, self.rollouts], axis=1), axis=0, return_counts=True)
        s, f = pairs[:, :1], pairs[:, 1:] - pairs[:, :1]
        logs = xlogy(s, grid) + xlog1py(f, -grid)
        likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))  # the chances themselves may underflow
        share = np.full(_GRID, 1 / _GRID)
        for _ in range(5000):
            new = share * ((copies / copies.sum() / (likelihood @ share)) @ likelihood)
            moved, share = float(np.abs(new - share).max()), new
            if moved < 1e-7:
                break
        kept = share > 1e-4
        share = share[kept] / share[kept].sum()
        return mixture([(w, point(p)) for w, p in zip(share.tolist(), grid[kept].tolist(), strict=True)])


@cache
def shipped_histograms() -> Mapping[str, Path]:
    """The measured histograms that come with the package, by name."""
    return {path.stem: path for path in sorted(HISTOGRAMS.glob("*.json"))}


def read_difficulty(
    path: Path | str,
    fit: str = "mixture",
    *,
    reward: str | None = None,
    threshold: float | None = None,
    label: str | None = None,
) -> Difficulty:
    """The distribution of pass rates in a file or folder.

    Args:
        path (`Path` or `str`): see `read_pass_counts`; also a JSON list or a column `pass_rate` of rates, and JSON
            with `counts` and optionally `edges`, a histogram: these are taken as they are.
        fit, reward, threshold: see `PassCounts.difficulty` and `read_pass_counts`.
        label (`str`, *optional*): how tables name it. None is the file's name.

    Raises:
        ValueError: if there is nothing that can be read.
    """
    path = Path(path)
    found = _read(path, reward, threshold)
    label = label or path.name
    if isinstance(found, Difficulty):
        return Difficulty(found.weights, found.parts, f"{label}: {found.label}")
    return found.difficulty(fit, label)


def read_pass_counts(path: Path | str, *, reward: str | None = None, threshold: float | None = None) -> PassCounts:
    """Successes and rollouts of each prompt.

    Args:
        path (`Path` or `str`): a completions table of TRL's `log_completions` or the folder of them, results.json of
            `adaroll eval` or its folder, a table with columns `successes` and `rollouts`, or JSON with `samples` and
            `prompts` or `right`. A prompt that occurs in several steps is counted once, with all its completions.
        reward (`str`, *optional*): of a completions table, the column of the reward function that says what a success
            is. Needed if there are several.
        threshold (`float`, *optional*): of a completions table: a reward of at least this is a success. None is 0.5.

    Raises:
        ValueError: if there is no such file, nothing in it says how often a prompt was solved, or a value in it cannot
            be (named with its row, the first being 1).
    """
    found = _read(Path(path), reward, threshold)
    if isinstance(found, Difficulty):
        raise ValueError(f"{path} holds pass rates but not of how many rollouts.")
    return found


def _read(path: Path, reward: str | None, threshold: float | None) -> PassCounts | Difficulty:
    if not path.exists():
        raise ValueError(f"{path} is not there. It should be {_KNOWN_FILES}.")
    try:
        if path.is_dir() and (path / "results.json").exists():
            path = path / "results.json"
        if path.is_file() and path.suffix == ".json":
            return _from_json(_parsed(path.read_text(encoding="utf-8")), reward, threshold)
        return _from_table(_read_completions(path), reward, threshold)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}. It should be {_KNOWN_FILES}.") from error


def _read_completions(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet or CSV table, or of all tables in a folder or in its `completions`.

    Raises:
        ValueError: if there is none.
    """
    import pyarrow
    from pyarrow import csv, parquet

    if path.is_dir():
        files = [file for folder in (path, path / "completions") for file in sorted(folder.glob("*.parquet"))]
    else:
        files = [path]
    readers: dict[str, Callable[[Path], Any]] = {".parquet": parquet.read_table, ".csv": csv.read_csv}
    if not files or any(file.suffix not in readers for file in files):
        raise ValueError(f"it should be {_KNOWN_FILES}.")
    try:
        tables = [readers[file.suffix](file) for file in files]
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"it is no such table: {str(error).splitlines()[0]}. It should be {_KNOWN_FILES}.") from error
    columns: dict[str, list[Any]] = pyarrow.concat_tables(tables, promote_options="default").to_pydict()
    return columns


def _from_json(content: Any, reward: str | None, threshold: float | None) -> PassCounts | Difficulty:
    _refuse_of_completions(reward, threshold)
    if isinstance(content, list):
        return rates(content)
    wrong = ValueError(f"it should be {_KNOWN_FILES}.")
    if not isinstance(content, Mapping):
        raise wrong
    if "counts" in content:
        return histogram(_numbers("counts", content["counts"]), content.get("edges"))
    prompts = content.get("prompts")
    try:
        if "right" in content:
            return _counts(content["right"], [content["samples"]] * len(content["right"]))
        if prompts and isinstance(prompts[0], Mapping):
            return _counts([one["num_correct"] for one in prompts], [one["num_samples"] for one in prompts])
        if prompts and len(prompts) == content.get("samples", -1) + 1:
            many = _whole("prompts", prompts)
            return PassCounts(np.repeat(np.arange(many.size), many), np.full(many.sum(), many.size - 1))
    except (KeyError, TypeError) as error:
        raise wrong from error
    raise wrong


def _numbers(name: str, values: Any) -> list[Any]:
    """`values`, if it is a list of finite numbers.

    Raises:
        ValueError: naming the first row that is none.
    """
    for row, value in enumerate(values, 1):
        if not is_number(value):
            raise ValueError(f"{name} of row {row} is {value!r}; it must be a number.")
    return list(values)


def _whole(name: str, values: Iterable[Any]) -> NDArray[np.int64]:
    """Counts of a file, int64 of shape (rows,).

    Raises:
        ValueError: naming the first row that holds no whole number from 0 to `_MOST`.
    """
    found = list(values)
    for row, value in enumerate(found, 1):
        if not (is_number(value) and 0 <= value <= _MOST and value == int(value)):
            raise ValueError(f"{name} of row {row} is {value!r}; it must be a whole number from 0 to {_MOST:,}.")
    return np.array(found, dtype=np.int64)


def _counts(successes: Iterable[Any], rollouts: Iterable[Any]) -> PassCounts:
    return PassCounts(_whole("successes", successes), _whole("rollouts", rollouts))


def _refuse_of_completions(reward: str | None, threshold: float | None) -> None:
    """What says which completions succeeded has no effect on counts that are there already."""
    for name, value in (("reward", reward), ("threshold", threshold)):
        if value is not None:
            raise ValueError(f"{name}={value!r} is for a table of completions with rewards, which it is not.")


def _from_table(
    columns: Mapping[str, list[Any]], reward: str | None, threshold: float | None
) -> PassCounts | Difficulty:
    if "pass_rate" in columns:
        _refuse_of_completions(reward, threshold)
        return rates(columns["pass_rate"])
    for successes, rollouts in (("successes", "rollouts"), ("num_correct", "num_samples")):
        if {successes, rollouts} <= set(columns):
            _refuse_of_completions(reward, threshold)
            return _counts(columns[successes], columns[rollouts])
    if "prompt" not in columns:
        raise ValueError(f"it has the columns {', '.join(columns)}; it should be {_KNOWN_FILES}.")
    scored = _success_column(columns, reward, 0.5 if threshold is None else threshold)
    seen: dict[str, list[int]] = {}
    for prompt, success in zip(columns["prompt"], scored, strict=True):
        if success is not None:
            counts = seen.setdefault(str(prompt), [0, 0])
            counts[0] += success
            counts[1] += 1
    return _counts(*zip(*seen.values(), strict=True)) if seen else _counts([], [])


def _success_column(columns: Mapping[str, list[Any]], reward: str | None, threshold: float) -> list[bool | None]:
    """Whether each completion of a table succeeded; None where it has no reward.

    Raises:
        ValueError: if it is not clear which column holds the reward.
    """
    found = [name for name, values in columns.items() if name not in _NO_REWARDS and _is_number(values)]
    if reward is None and len(found) == 1:
        reward = found[0]
    if reward not in found:
        asked = f"reward={reward!r} is none of them" if reward else "say with `reward` which reward tells a success"
        raise ValueError(f"{asked}: its numeric columns are {', '.join(found) or 'none'}.")
    return [None if value is None or value != value else bool(value >= threshold) for value in columns[reward]]


def _is_number(values: ArrayLike) -> bool:
    kinds = {type(value) for value in values if value is not None}  # type: ignore[union-attr]
    return bool(kinds) and kinds <= {float, int, bool}

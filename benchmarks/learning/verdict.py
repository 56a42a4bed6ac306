"""What the complete tables say in words, how much of it is the allocation, and the runs that learnt nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from design import CONFIRM
from differences import Cells, arms_of, baseline, cell_text, difference, table
from planned import GRPO, complete, planned_arms, tables
from regimes import REGIMES
from summary import Difference, Run, area, compare, curve, fell, final, holm

PRIMARY = (("final pass@1", final), ("area", area))


def verdict(cells: Cells) -> Iterator[str]:
    """What the intervals of the complete tables say about the primary outcomes, in words."""
    due = [table for table in tables() if complete(cells, *table)]
    found = _corrected(cells, [table for table in due if table[1] != CONFIRM], PRIMARY)
    again = _corrected(cells, [table for table in due if table[1] == CONFIRM], PRIMARY[:1])
    yield "## Verdict\n"
    if not found and not again:
        yield "None yet: no table is complete.\n"
        return
    yield (
        f"Of {len(found)} comparisons with GRPO (final pass@1 and area under the curve, in complete tables) those "
        "that are found after correction for the arms of their table. p is given as it is, and after Holm's "
        f"correction for all {len(found)} at once: what does not reach 0.05 there is better taken as a hint.\n"
    )
    for heading, sign in (("better", 1), ("worse", -1)):
        yield f"{heading.capitalize()} than GRPO:\n"
        yield from [text for text, one in found if one.found and sign * one.mean > 0] or ["- none"]
        yield ""
    if again:
        yield f"Again, with seeds on which nothing was chosen (all of it; Holm's correction for these {len(again)}):\n"
        yield from [text for text, _ in again]
        yield ""
        yield from _pooled(cells, [regime for regime, factor in due if factor == CONFIRM])


def _corrected(
    cells: Cells, chosen: Sequence[tuple[str, str]], outcomes: Sequence[tuple[str, Callable[[Run], float]]]
) -> list[tuple[str, Difference]]:
    """Every comparison of some tables as a line and as numbers, corrected for all of them together."""
    found = [
        (f"`{arm}` in {regime}{factor and f' ({factor})'}: {label}", difference(cells, regime, arm, factor, outcome))
        for regime, factor in chosen
        for arm in planned_arms(regime, factor)
        for label, outcome in outcomes
    ]
    corrected = holm([one.p for _, one in found])
    return [
        (f"- {name} {100 * one.mean:+.1f} (p {one.p:.4f}, after Holm {p:.3f})", one)
        for (name, one), p in zip(found, corrected, strict=True)
    ]


def _pooled(cells: Cells, regimes: Sequence[str]) -> Iterator[str]:
    """The arms that were run again, over all their seeds."""
    yield "Over both, the seeds on which they were chosen and those on which nothing was, uncorrected:\n"
    for regime in regimes:
        for arm in planned_arms(regime, CONFIRM):
            of, grpo = (
                {**cells.get((regime, name, ""), {}), **cells.get((regime, name, CONFIRM), {})} for name in (arm, GRPO)
            )
            one = compare(of, grpo, final, 1)
            yield f"- `{arm}` in {regime}: final pass@1 {cell_text(one, 100, finished=False)} ({one.seeds} seeds)"
    yield ""


def fallen(cells: Cells) -> Iterator[str]:
    """Runs that learnt nothing, and what the final comparisons are without the seeds where either side did so."""
    low = {key: sorted(seed for seed, run in of.items() if fell(run)) for key, of in cells.items()}
    if not any(low.values()):
        return
    yield "## Runs that ended below their start\n"
    yield (
        "They count in every table. The last column is final pass@1 less GRPO's over the seeds in which neither run "
        "did so.\n"
    )
    rows = []
    for (regime, arm, factor), seeds in low.items():
        of, grpo = cells[regime, arm, factor], baseline(cells, regime, factor)
        others = {
            seed: run for seed, run in of.items() if seed not in seeds and not (grpo.get(seed) and fell(grpo[seed]))
        }
        without = compare(others, grpo, final, len(planned_arms(regime, factor)))
        for seed in seeds:
            accuracy = 100 * curve(of[seed])[1]
            shown = cell_text(without, 100, finished=False) if arm != GRPO else ""
            rows.append(
                [f"{regime} `{arm}` {factor}".strip(), str(seed), f"{accuracy[0]:.1f}", f"{accuracy[-1]:.1f}", shown]
            )
    yield from table(["cell", "seed", "pass@1 before", "after", "the other seeds"], rows)


CONTROL = "grpo-progress-weights"


def against_control(cells: Cells) -> Iterator[str]:
    """What the arms with the weights of `progress` owe to their allocation."""
    rows = []
    for regime in REGIMES:
        of = cells.get((regime, CONTROL, ""), {})
        for arm in arms_of(cells, regime):
            found = cells[regime, arm, ""]
            options = next(iter(found.values()))["options"]
            if arm != CONTROL and options.get("prompt_weighting") == "progress" and found.keys() & of.keys():
                differences = [compare(found, of, outcome, 1) for _, outcome in PRIMARY]
                texts = [cell_text(one, 100, finished=False) for one in differences]
                rows.append([f"{regime} `{arm}`", str(differences[0].seeds), *texts])
    if rows:
        yield "## Allocation or weights?\n"
        yield (
            f"Arms with the weights of `progress`, less `{CONTROL}`: equal groups with the same weights and scaling, "
            "so that the difference is the allocation's. Uncorrected.\n"
        )
        yield from table(["arm", "seeds", *(label for label, _ in PRIMARY)], rows)

"""How a run's results are written down: what `cell` writes and `summary` reads."""

from __future__ import annotations

SAMPLES, LAST_SAMPLES = 4, 16  # completions of a held-out problem on the way, and at the start and the end
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # how many were right, a digit a problem
# Of a row of "groups": sums over the groups of a third of the training and a level. `mass` is the sum of s f / n: a
# prompt's weight with a mean baseline, in units of p (1 - p).
GROUP_COLUMNS = ("third", "level", "prompts", "rollouts", "right", "mixed", "rollouts_in_mixed", "mass")

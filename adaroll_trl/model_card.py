"""What AdaRoll adds to the model card that TRL writes: the method, its paper, this library, and GRPO's own citation.

TRL's template names a paper only by its arXiv number, which AdaRoll-GRPO's has not; so the text is put in afterwards.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .config import AdaRollOptions

PAPER_TITLE = "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training"
PAPER_CITATION = textwrap.dedent("""\
    @article{adaroll2026,
        title        = {{Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training}},
        year         = 2026,
        month        = oct,
    }""")
LIBRARY_CITATION = textwrap.dedent("""\
    @software{adaroll_trl,
        title        = {{adaroll_trl: Adaptive Rollout Allocation for GRPO, as a Plugin for TRL}},
        license      = {Apache-2.0},
        year         = 2026,
    }""")

_METHOD = (
    f'AdaRoll-GRPO, a method introduced in "{PAPER_TITLE}" (October 2026), gives each prompt of a batch as many '
    "rollouts as its rewards so far call for, at the same total. It is implemented in adaroll_trl, a plugin for TRL."
)
_SHOWN = ("allocator", "utility", "rounds", "stream_rollouts", "belief_decay", "prompt_weighting")


def complete_model_card(path: Path, citations: Sequence[tuple[str, str]], options: AdaRollOptions) -> None:
    """Add to the model card at `path`; what it holds already is not added twice.

    Args:
        path (`Path`): a README.md as TRL's trainers write it.
        citations (sequence of pairs): a name and a BibTeX entry each, besides those of the paper and this library.
        options (`AdaRollOptions`): of the run; the card names those that say how rollouts were allocated.
    """
    card = path.read_text(encoding="utf-8")
    if _METHOD in card:
        return
    chosen = ", ".join(f"`{name}={getattr(options, name)!r}`" for name in _SHOWN)
    told = f"{_METHOD} This run had {chosen}; the paper's setting, as that library reads it, has `utility='mixed'`."
    card = _before(card, "### Framework versions\n", f"{told}\n\n")
    card = _after(card, "### Framework versions\n\n", f"- adaroll_trl: {__version__}\n")
    for name, entry in (("AdaRoll-GRPO", PAPER_CITATION), *citations, ("adaroll_trl", LIBRARY_CITATION)):
        if entry.strip() not in card:
            card = _before(card, "Cite TRL as:", f"Cite {name} as:\n\n```bibtex\n{entry.strip()}\n```\n\n")
    path.write_text(card, encoding="utf-8")


def _before(card: str, mark: str, text: str) -> str:
    """`text` in front of the last `mark`, or at the end of a card that lacks it."""
    head, found, tail = card.rpartition(mark)
    return f"{head}{text}{found}{tail}" if found else f"{card.rstrip()}\n\n{text}"


def _after(card: str, mark: str, text: str) -> str:
    head, found, tail = card.rpartition(mark)
    return f"{head}{found}{text}{tail}" if found else f"{card.rstrip()}\n\n{text}"

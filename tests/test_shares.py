"""Who generates what: the rows of a round, dealt to the ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.batch import GenerationBatch, deal


@st.composite
def rounds_of_a_batch(draw):
    """Prompt lengths, a number of ranks, and the counts of one to four rounds."""
    lengths = draw(st.lists(st.integers(1, 500), min_size=1, max_size=12))
    ranks = draw(st.integers(1, 8))
    counts = st.lists(st.integers(0, 20), min_size=len(lengths), max_size=len(lengths))
    rounds = draw(st.lists(counts, min_size=1, max_size=4))
    for drawn in rounds:
        drawn[0] += -sum(drawn) % ranks or (0 if sum(drawn) else ranks)
    return np.array(lengths), ranks, [np.array(drawn) for drawn in rounds]


def play(lengths, ranks, rounds):
    """The batch's hands, round by round: an array of shape (ranks, rows of each)."""
    rows = [{"prompt": "x" * length} for length in lengths]
    left = sum(int(counts.sum()) for counts in rounds)
    batch = GenerationBatch(rows, [str(i) for i in range(len(rows))], *np.ones((2, len(rows))), left, len(rounds))
    for counts in rounds:
        shares = [batch.plan_round(counts, rank, ranks) for rank in range(ranks)]
        assert all(np.array_equal(share.group_ids, shares[0].group_ids) for share in shares)
        yield np.array([share.group_ids[share.local] for share in shares])
        nothing = np.zeros(len(rows))
        batch.record(shares[0], nothing, nothing)


@settings(max_examples=200, deadline=None)
@given(rounds_of_a_batch())
def test_every_row_is_dealt_once_and_evenly(case):
    lengths, ranks, rounds = case
    gap = lengths.max() - lengths.min()
    loads = np.zeros(ranks)
    hands_of_rounds = list(play(lengths, ranks, rounds))
    for counts, hands in zip(rounds, hands_of_rounds, strict=True):
        assert hands.shape == (ranks, counts.sum() // ranks)
        np.testing.assert_array_equal(np.bincount(hands.ravel(), minlength=len(lengths)), counts)
        plain = len(rounds) == 1 and len(set(counts.tolist())) == 1
        if ranks == 1 or plain:
            assert (np.diff(hands.ravel()) >= 0).all()
            continue
        for prompt in range(len(lengths)):
            held = (hands == prompt).sum(axis=1)
            assert held.max() - held.min() <= 1
        assert np.ptp(lengths[hands].sum(axis=1)) <= gap
        loads += lengths[hands].sum(axis=1)
        assert np.ptp(loads) <= gap  # over the rounds so far, not only within each


def test_a_long_prompt_is_shared():
    """The case that TRL's order would hand to one rank: prompt 1 is long, and takes half of the round."""
    (hands,) = play(np.array([10, 1000, 20, 30]), 4, [np.array([4, 8, 2, 2])])
    assert [Counter(hand.tolist())[1] for hand in hands] == [2, 2, 2, 2]


def test_the_rank_with_the_most_gets_the_lightest_hand():
    dealt = deal(np.array([1, 1, 1]), np.array([5, 90, 40]), np.array([7.0, 100.0, 30.0]))
    assert dealt.tolist() == [1, 0, 2]


@pytest.mark.parametrize(("counts", "left"), [([2, 2, 2, 2], 8), ([2, 2, 2, 2], 16), ([1, 3, 2, 2], 8)])
def test_only_a_whole_batch_of_equal_groups_keeps_the_order_of_trl(counts, left):
    rows = [{"prompt": "x" * length} for length in (9, 5, 7, 3)]
    batch = GenerationBatch(rows, list("abcd"), np.ones(4), np.ones(4), left=left, rounds_left=left // 8)
    found = batch.plan_round(np.array(counts), 1, 2).group_ids.tolist()
    in_order = np.repeat(np.arange(4), counts).tolist()
    assert (found == in_order) == (counts == [2, 2, 2, 2] and left == 8)


def test_conversations_are_measured_by_what_they_say():
    rows = [
        {"prompt": [{"role": "system", "content": "s" * 50}, {"role": "user", "content": "u"}]},
        {"prompt": [{"role": "user", "content": "u" * 20}]},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "t" * 90}]}]},
        {"prompt": [{"role": "user", "content": "u" * 30}]},
    ]
    batch = GenerationBatch(rows, list("abcd"), np.ones(4), np.ones(4), left=4, rounds_left=2)
    assert batch.plan_round(np.array([1, 0, 1, 0]), 0, 2).group_ids.tolist() == [0, 2]
    assert batch.plan_round(np.array([1, 1, 0, 0]), 0, 2).group_ids.tolist() == [1, 0]

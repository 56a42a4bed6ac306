"""The verifiers: hard cases by hand, any text at all, and what must hold for every answer."""

from __future__ import annotations

import time
from importlib import util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.tasks.answers import (
    TAIL,
    as_number,
    final_part,
    gold_answer,
    last_boxed,
    numbers_in,
    only_number,
    solution_steps,
)
from adaroll_trl.tasks.mathematics import LONGEST, MathVerifier
from adaroll_trl.tasks.verifiers import LetterVerifier, NumberVerifier, TextVerifier, YesNoVerifier

NUMBER, LETTER, YES_NO, TEXT, MATH = (
    NumberVerifier(),
    LetterVerifier(),
    YesNoVerifier(),
    TextVerifier(),
    MathVerifier(),
)
ALL = [NUMBER, LETTER, YES_NO, TEXT, MATH]

# Completion, and the answer that it gives; None: none, or none that is clear.

NUMBERS = [
    ("#### 72", "72"),
    ("16 / 2 = 8\n#### $1,200", "1200"),
    ("First #### 3, then #### 4", "4"),  # the last mark
    ("#### 5 or 6", None),
    ("#### Step 3\nSo 3 * 4 = 12", "12"),  # a heading
    ("#### 2. Add them\nThat makes 7.", "7"),
    ("#### 12 (= 3 * 4)", None),
    (r"\boxed{12}", "12"),
    (r"\boxed{3} is the first, \boxed{4} the second", "4"),
    (r"\boxed{12}" + "\n#### 13", "13"),
    ("#### 13\n" + r"\boxed{12}", "12"),
    (r"$\boxed{\$1{,}200.50}$", "1200.50"),
    (r"\boxed{1\,200}", "1200"),
    (r"\boxed{12 \text{ cm}^2}", "12"),
    (r"\boxed{x = 12}", "12"),
    (r"\boxed{3 \times 4 = 12}", "12"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    (r"\boxed{\frac{72}{4}}", "18"),
    (r"\boxed{36/2}", "18"),
    (r"\boxed{-\frac{5}{5}}", "-1"),
    (r"\boxed{\frac{5}{0}}", None),
    (r"\boxed{- 5}", "-5"),
    (r"\boxed{\sqrt{16}}", None),
    (r"\boxed{16!}", None),
    (r"\boxed{{4}^2}", None),
    (r"\boxed{5\pi}", None),
    (r"\boxed{60 \text{ km/h}}", "60"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{7 1/2}", None),
    (r"\boxed{1.5 \text{ million}}", None),
    ("#### 5k", None),
    ("The answer is 1.5 million.", None),
    ("The answer is 5k", None),
    ("The answer is 1e3", None),
    ("The answer is 7 1/2", None),
    ("It is 1.5 million", None),
    ("It is 1/2", None),
    ("The answer is 2 x 5 = 10", "10"),
    (r"The answer is $2 \times 5 = 10$", "10"),
    ("The answer is 20% of 50 = 10", "10"),
    ("The answer is 4 apples + 5 pears = 9", "9"),
    ("The answer is 2 x 5", None),
    ("The answer is 10 11 12 13", None),
    ("The answer is 10;11;12", None),
    ("The answer is 10, 11, 12 or 13", None),
    ("The answer is between 5 and 10", None),
    ("The answer is 5 to 10", None),
    ("The answer is 5 (or maybe 6)", None),
    ("The answer is 5 hours and 30 minutes", None),
    (r"The answer is $\sqrt{16}$", None),
    ("The answer is 18 eggs.", "18"),
    ("The answer is **18**", "18"),
    ("The answer is $18", "18"),
    ("The answer is 18 dollars per day", "18"),
    ("The answer is 18 eggs for 3 people.", "18"),
    ("The answer is 12 because 3 * 4 = 12 and 5 is less.", "12"),
    ("<answer>18</answer>", "18"),
    ("#### 18!", "18"),
    (r"\boxed{+18}", "18"),
    ("The answer is 18! That is 3 more.", "18"),
    (r"\boxed{5, 6}", None),
    (r"\boxed{}", None),
    (r"\boxed{12", None),  # cut off
    (r"\boxed{10} hm, no: \boxed{12", None),
    (r"\boxed{\boxed{7}}", "7"),
    (r"\fbox{7}", "7"),
    (r"\boxed 7", "7"),
    (r"\boxed{7}, which is more than 3", "7"),
    ("The answer is 12.", "12"),
    ("The answer is $12.50.", "12.50"),
    ("**Answer:** **-42** apples", "-42"),
    ("Answer: 10 - 4 = 6", "6"),
    ("The answer is 5 or 6.", None),
    ("The final answer is: 1,000,000 people", "1000000"),
    ("The answer is clear. 3 and 4 make 7", "7"),
    ("The answer is 12, not 13.", "12"),
    ("There are 3 and 1,250 in all.", "1250"),
    ("10-4=6", "6"),
    ("it got colder: \u22125 degrees", "-5"),
    ("costs -$5", "-5"),
    ("about .5", "0.5"),
    ("in steps of 1,2,3", "3"),
    ("H2O", None),
    ("no idea", None),
    ("", None),
    ("<think>\\boxed{3}</think>I say 4", "4"),
    ("<think>\\boxed{3}", None),
    ("\\boxed{3}</think>\\boxed{4}", "4"),  # the tag was opened in the prompt
]

LETTERS = [
    ("Answer: B", "B"),
    ("**Answer: (c)**", "C"),
    ("**Answer:** D.", "D"),
    ("Answer:\n\nB", "B"),
    ("Final answer: **B**", "B"),
    ("The answer is B because A is false.", "B"),
    ("The correct option is: (C)", "C"),
    ("The best choice is A, since", "A"),
    ("Answer: Option B", "B"),
    ("Answer: A\nNo, Answer: B", "B"),  # the last mark
    ("Answer: A or B", None),
    ("Answer: D\nAnswer: A and B", None),
    ("Answer: A, B", None),
    ("Answer: A/B", None),
    ("Answer: B, a clear case. I am sure.", "B"),
    ("The answer is a trick.", None),
    ("Answer: I'd rather not say", None),
    ("Answer: because", None),
    ("Answer: B\n\nThe only other option is D, but it fails.", "B"),
    ("Answer: B.\nThe other choice: A, is too strong.", "B"),
    ("**Answer: B**\n\n**Why not option: A** It is too strong.", "B"),
    ("The best option is C for the city.\n\nB", "B"),
    ("Answer: A B C D", None),
    ("Answer: A + B", None),
    ("Answer: A and also B", None),
    ("Answer: A as well as B", None),
    ("Answer: A|B", None),
    ("Answer: A.B.C.D.", None),
    ("Answer: A. B. C. D.", None),
    ("Answer: B; C", None),
    ("Answer: A is wrong, B is right", None),
    ("Answer: A is wrong", None),
    ("Answer: B, not A", "B"),
    ("Answer: C. A and B are both in the team.", "C"),
    ("Answer: B. A good choice.", "B"),
    ("B\nAnswer: none of them", None),
    (r"\boxed{A. foo or B. bar}", None),
    (r"\boxed{A) or B)}", None),
    ("<answer>B</answer>", "B"),
    ("<answer>b</answer>", "B"),
    ("Answer: `B`", "B"),
    ("So B is correct.", "B"),
    ("So the answer must be B", "B"),
    ("Answer\uff1a B", "B"),
    (r"\boxed{B}", "B"),
    (r"Answer: A, so $\boxed{\text{B}}$", "B"),
    (r"\boxed{\textbf{(B)}}", "B"),
    (r"\boxed{B. The keys}", "B"),
    (r"\boxed{A, B}", None),
    (r"\boxed{AB}", None),
    ("B. The keys are lost.", "B"),
    ("I looked at them all.\n(C)", "C"),
    ("A", "A"),
    ("b)", "B"),
    ("A man said so.", None),
    ("I think B", None),
    ("A. one\nB. two\nC. three", "C"),  # the last line
    ("The keys are lost.", None),
    ("", None),
]

YES_OR_NO = [
    ("Answer: Yes", "yes"),
    ("answer: **no**.", "no"),
    ("The answer is: No, it did not.", "no"),
    ("Answer: Yes\nWait. Answer: No", "no"),
    ("Answer: yes or no", None),
    ("Answer: yes/no", None),
    ("Answer: not sure", None),
    (r"\boxed{Yes, No}", None),
    (r"\boxed{Yes and No}", None),
    (r"\boxed{No solution}", None),
    ("Answer: Yes and No", None),
    ("Answer: Yes, no", None),
    ("Answer: Yes | No", None),
    ("Answer: Yes - No", None),
    ("Answer: Yes or perhaps No", None),
    ("Answer: No idea", None),
    ("Answer: No one knows", None),
    ("Answer: No-one", None),
    ("Yes, he can.\nAnswer: Unknown", None),
    ("Answer: Yes, he has no brothers.", "yes"),
    ("Answer: No, that is not true.", "no"),
    ("The answer is no because he was dead.", "no"),
    ("Yes or no", None),
    ("<answer>Yes</answer>", "yes"),
    ("Therefore: No", "no"),
    ("The answer is definitely no.", "no"),
    (r"\boxed{\text{Yes}}", "yes"),
    (r"Answer: No. \boxed{True}", "yes"),
    (r"\boxed{maybe}", None),
    ("Yes, because\nno one is older.", "yes"),
    ("Hm.\nNo.", "no"),
    ("FALSE", "no"),
    ("Nobody knows.", None),
    ("Yesterday", None),
    ("It is true that no one knows", None),
    ("", None),
]

TEXTS = [
    ("Paris", "Paris"),
    ("I think so.\n\nParis\n", "Paris"),
    ("Answer: Paris\nIt is in France.", "Paris"),
    (r"Answer: Rome. \boxed{Paris}", "Paris"),
    ("#### Paris", "Paris"),
    ("Answer:", None),
    (" \n", None),
]

EXPRESSIONS = [
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{1}, \boxed{2}", "2"),
    (r"\boxed{\left\{ x : \text{odd \} } \right\}}", r"\left\{ x : \text{odd \} } \right\}"),
    (r"\boxed{\{1", None),
    (r"The final answer is $\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
    (r"Answer: \(x+1\)", "x+1"),
    ("Answer:\n\\[\n5\n\\]", "5"),
    ("Answer:\n$$\n\\frac12\n$$\nThat is all.", r"\frac12"),
    ("The final answer is 5. I hope it is correct.", "5"),
    (r"**Answer:** 12.", "12"),
    (r"The answer is $5$ or $6$.", None),
    ("so it is $5$", None),  # not marked
    (r"\boxed{%s}" % ("1" * (LONGEST + 1)), None),
    ("", None),
]


@pytest.mark.parametrize(
    ("verifier", "cases"),
    [(NUMBER, NUMBERS), (LETTER, LETTERS), (YES_NO, YES_OR_NO), (TEXT, TEXTS), (MATH, EXPRESSIONS)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_completion_answers(verifier, cases):
    found = {completion: verifier.extract(completion) for completion, _ in cases}
    assert found == dict(cases)


@pytest.mark.parametrize(
    ("completion", "gold", "right"),
    [
        ("12.00", "12", True),
        ("$1,200", "1200", True),
        ("1200", "$1,200", True),
        ("50%", "50", True),
        ("12.5", "12", False),
        ("1000001", "1000000", False),  # not within a millionth of it
        ("0.3333333", "0.33333333", True),
        ("0.334", "0.333", False),
        ("-5", "5", False),
        ("9007199254740993", "9007199254740992", False),  # beyond what floats tell apart
        ("9" * 5_000, "5", False),
        ("5", "five", False),
    ],
)
def test_numbers_are_compared_by_value(completion, gold, right):
    assert NUMBER.verify(completion, gold) is right


def test_letters_words_and_texts_are_compared_without_case():
    assert LETTER.verify("Answer: b", "B")
    assert LETTER.verify("Answer: B", "(b)")
    assert YES_NO.verify("Answer: YES", "True")
    assert not YES_NO.verify("Answer: yes", "no")
    assert TEXT.verify("I think so.\n\n**paris**.\n", "Paris")
    assert not TEXT.verify("Paris\nno, Rome", "Paris")
    assert not TEXT.verify("", "Paris")


# Gold, given, and whether it is right: MATH's kinds of answers.
SAME = [
    (r"\frac{1}{2}", "0.5", True),
    (r"\frac12", r"\dfrac{1}{2}", True),
    (r"\frac{3}{2}", r"1\frac12", True),
    (r"-\frac{3}{4}", r"\frac{-3}{4}", True),
    (r"\frac{1}{3}", "0.33", False),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True),
    (r"3\sqrt{13}", r"\sqrt{117}", True),
    (r"\pi", "3.14", False),
    (r"[0,1)", r"\left[0,1\right)", True),
    (r"[0,1)", r"[0,1]", False),
    (r"(0,1)", r"[0,1]", False),
    (r"(-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)", True),
    (r"[-2,7]", r"x \in [-2,7]", True),
    (r"(3,4)", r"\left( 3, 4 \right)", True),
    (r"(3,4)", "(4,3)", False),
    (r"(3,4)", "4, 3", False),  # math-verify alone takes it
    ("1,2", "(1,2)", False),
    ("1,2", "2, 1", True),
    ("1,2", r"\{1,2\}", True),
    ("1,2,3", "1,2", False),
    ("5", "5, 6", False),
    ("5", r"5 \text{ or } 6", False),
    ("5", r"5\text{ hours and }30\text{ minutes}", False),  # math-verify alone takes these three
    ("5", r"5 \mod 6", False),
    ("5", "5=6", False),
    ("6", "3+3=6", True),
    ("1,2", r"1 \text{ and } 2", True),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}", True),
    (r"10\text{ cm}", "10", True),
    ("70", r"70 \text{ square inches}", True),
    (r"90^\circ", "90", True),
    (r"\$18.90", "18.9", True),
    ("10,000", r"10{,}000", True),
    (r"50\%", "50", True),
    ("x=5", "5", True),
    ("5", "x = 5", True),
    ("y=2x+3", "2x+3", True),
    ("x^2+2x+1", "(x+1)^2", True),
    ("x^2+2x+1", "(y+1)^2", False),
    (r"\text{red}", "red", True),
    (r"\text{red}", r"\text{blue}", False),
    (r"\text{May 2}", "May 2", True),
    (r"\text{(C)}", "C", True),
    ("2516_8", "2516_{8}", True),
    ("2516_8", "2516_9", False),  # math-verify alone drops the base
    ("6-5i", "-5i + 6", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
    (r"\emptyset", r"\varnothing", True),
    ("1", "one", False),
]


def test_expressions_are_compared_by_value():
    assert all(MATH.readable(gold) for gold, _, _ in SAME)
    wrong = [
        (gold, answer) for gold, answer, right in SAME if MATH.verify(f"So $\\boxed{{{answer}}}$.", gold) is not right
    ]
    assert not wrong


def test_a_gold_answer_that_is_no_mathematics_is_not_readable():
    for gold in ("", r"\frac{1}{", "1" * (LONGEST + 1)):
        assert not MATH.readable(gold)
        assert not MATH.verify(f"\\boxed{{{gold}}}", gold)


def test_math_verify_missing_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr("adaroll_trl.tasks.mathematics.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "adaroll_trl\[math\]"'):
        MathVerifier().verify(r"\boxed{1}", "2")
    assert util.find_spec("math_verify") is not None


# Any text

_MARKS = [r"\boxed{", r"\boxed", "####", "answer is ", "Answer: ", "option: ", "<think>", "</think>", "\n", " ", "**"]
_PARTS = [
    r"\{",
    r"\frac{1}{",
    r"\text{",
    "{",
    "}",
    "$",
    "12",
    "1,000",
    "-",
    ".",
    "=",
    "(",
    ")",
    "B",
    "a",
    "yes",
    "no",
    "or",
]
PIECES = st.sampled_from([*_MARKS, *_PARTS])
ANY_TEXT = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join))


@given(ANY_TEXT, st.sampled_from(["12", "B", "no", "red", ""]))
@settings(max_examples=150, deadline=None)
def test_no_text_makes_a_verifier_raise(text, gold):
    for verifier in ALL:
        extracted = verifier.extract(text)
        assert extracted is None or extracted.strip()
        if verifier is not MATH:
            assert verifier.verify(text, gold) in (True, False)
            assert verifier.readable(text) in (True, False)
    assert isinstance(gold_answer(text), str)


@given(st.lists(PIECES, max_size=8).map("".join))
@settings(max_examples=25, deadline=None)
def test_no_text_makes_math_verify_raise(text):
    assert MATH.verify(f"\\boxed{{{text}}}", "12") in (True, False)


@given(
    st.integers(-(10**9), 10**9), st.sampled_from(["\\boxed{{{}}}", "#### {}", "The answer is {}.", "It is {}", "{}"])
)
@settings(max_examples=100, deadline=None)
def test_every_number_is_right_in_every_form_and_its_neighbour_is_not(number, form):
    for spelled in (f"{number}", f"{number:,}", f"{number}.00"):
        assert NUMBER.verify("First 1, 2. " + form.format(spelled), str(number))
        assert not NUMBER.verify(form.format(spelled), str(number + 1))
        assert as_number(spelled) == number


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5))
def test_the_last_box_counts(numbers):
    text = " then ".join(f"\\boxed{{{number}}}" for number in numbers) + " and 100 more words"
    assert NUMBER.extract(text) == MATH.extract(text) == str(numbers[-1])


@given(
    st.recursive(
        st.sampled_from(["x", "\\{", "\\}", "1"]),
        lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    ),
    st.text("xy ,.$}", max_size=5),
)
def test_a_box_holds_all_of_its_braces(inside, behind):
    assert last_boxed(f"a \\boxed{{{inside}}}{behind}") == (inside.strip() or None)


@given(
    st.sampled_from("ABCDE"),
    st.sampled_from("ABCDE"),
    st.sampled_from(["Answer: {}", "\\boxed{{{}}}", "({})", "{}. Words."]),
)
def test_every_letter_is_right_and_others_are_not(letter, gold, form):
    assert LETTER.verify("Not Z.\n" + form.format(letter), gold) is (letter == gold)


LONG = [
    "1,111" * 20_000,
    "9" * 100_000,
    "answer is " * 10_000,
    "answer is " + "*" * 100_000,
    "answer is " + "5 or " * 20_000,
    "\\boxed{" * 15_000,
    "{" * 100_000,
    "(" * 100_000,
    "#### " * 20_000,
    "Answer: B" + "." * 100_000 + "x",
    "yes or " * 15_000,
    "a^" + " " * 100_000,
    "\\" * 100_000,
    "$" * 100_000,
    "<think>" * 15_000,
    "\n" * 100_000,
    "x = 1 " * 17_000,
    "Answer: no" + " " * 100_000 + "x",
    "-" + " " * 19_000 + "x",
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: repr(text[:12]))
def test_100_kb_take_no_time(text):
    started = time.process_time()
    for verifier in ALL:
        verifier.verify(text, "5")
        verifier.find(f"\\boxed{{{text[:TAIL]}}}")
    assert time.process_time() - started < 2


def test_an_answer_at_the_end_of_a_long_text_is_found():
    assert NUMBER.verify("thinking about 7 " * 10_000 + "#### 12", "12")
    assert len(final_part("x" * 100_000)) == TAIL


# Parts


def test_gold_answers_in_solutions():
    assert gold_answer("16 / 2 = 8\n#### 1,200") == "1,200"
    assert gold_answer(r"So $\boxed{\frac{1}{2}}$.") == r"\frac{1}{2}"
    assert gold_answer(" yes ") == "yes"
    assert last_boxed("no box") is None
    assert last_boxed(r"\boxed{open") is None
    assert solution_steps("<<1+1=2>>2, <<2*2=4>>4\n#### 4") == 2
    assert solution_steps("4") is None


def test_numbers_in_texts():
    assert as_number("12 apples") is None
    assert [float(number) for number in numbers_in("3-2 of -1.5, 1,000.25; x2")] == [3, 2, -1.5, 1000.25]
    assert only_number("5 = 5") == 5
    assert only_number("") is None

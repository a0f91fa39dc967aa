"""What an expression of `-k` matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import ConformanceError
from conformance.runner.planning.expression import matcher

WORDS = st.sampled_from(["llama", "gpt2", "hf", "vllm-pp2", "steering", "last"])


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("", True),
        ("steering", True),
        ("STEERING", True),
        ("steering and hf", True),
        ("steering and not hf", False),
        ("ablation or (vllm-pp1 or hf) and last", True),
        ("not (steering or ablation)", False),
    ],
)
def test_expressions_choose_by_the_words_of_an_id(expression, matches):
    assert matcher(expression)("steering[llama-hf-last-small-one]") is matches


@given(WORDS, WORDS, st.text("abcdefghijklmnop-[]", max_size=30))
def test_an_expression_is_what_its_operators_say(left, right, text):
    a, b = matcher(left)(text), matcher(right)(text)
    assert matcher(f"{left} and not {right}")(text) == (a and not b)
    assert matcher(f"({left} or {right})")(text) == (a or b)


@pytest.mark.parametrize(
    "expression",
    [" or ".join(["a"] * 20_000), "(" * 9_000 + "a" + ")" * 9_000, "not " * 9_000 + "a"],
    ids=["long", "deep", "denied"],
)
def test_the_length_and_depth_of_an_expression_cost_nothing(expression):
    assert matcher(expression)("abc")


@pytest.mark.parametrize(
    "expression", ["and", "steering and", "(steering", "not", "a b", "()", "a)", "a (b)", "a or (b"]
)
def test_an_expression_that_cannot_be_read_is_refused(expression):
    with pytest.raises(ConformanceError, match="cannot read the expression"):
        matcher(expression)

"""An engine's values compared with transformers': their form, and what rounding explains."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.check import describe
from conformance.commands.check.values import compare
from conformance.commands.check.values.compare import made_alike
from conformance.judge.cell.measures import structure
from conformance.spec.generated_tokens import FLOAT32_WAY
from conformance.spec.records import Precision, Site, Verdict

# --- the form: a list of equal shapes and one tensor hold the same numbers


TOKENS = torch.arange(8)
ROWS, LOGITS = torch.zeros(6, 8), torch.zeros(32)


def listed(tensor, name="tokens"):
    return {f"p0/s{step}/{name}": row for step, row in enumerate(tensor)}


def alike(mine, reference):
    return made_alike(mine, {"truth": reference, "eager": reference})


def test_a_list_and_one_tensor_take_the_form_that_transformers_has():
    found, notes = alike(listed(TOKENS), {"p0/s0/tokens": TOKENS})
    assert torch.equal(found["p0/s0/tokens"], TOKENS) and len(found) == 1
    assert notes == ("`tokens` is a list of 8 there and one tensor on transformers",)
    found, notes = alike({"p0/s0/tokens": TOKENS}, listed(TOKENS))
    assert found == listed(TOKENS)
    assert notes == ("`tokens` is a list of 8 on transformers and one tensor there",)


@given(st.integers(2, 5), st.integers(1, 5), st.integers(1, 5))
def test_what_has_other_numbers_of_entries_stays_as_it_is(count, width, other):
    rows = torch.zeros(count, width)
    mine = listed(rows)
    if (count, width) != (count, other):
        found, notes = alike(mine, {"p0/s0/tokens": torch.zeros(count, other)})
        assert found.keys() == mine.keys() and not notes
    found, notes = alike(mine, {"p0/s0/tokens": torch.zeros(count + 1, width)})
    assert found.keys() == mine.keys() and not notes


def test_an_axis_of_one_is_noted_once_and_names_every_value():
    reference = {f"p0/s0/{name}": ROWS[None] for name in ("first", "second", "third")}
    reference |= {
        "p0/s0/last": LOGITS[None],
        "p0/s0/all.3": ROWS[None],
        "p0/s1/all.3": ROWS[:1][None],
    }
    mine = {name: value[0] for name, value in reference.items()}
    [note] = alike(mine, reference)[1]
    assert note == (
        "`all`, `first`, `second`, `third` are [1, 6, 8] on transformers and [6, 8] there; `last` "
        "is [1, 32] on transformers and [32] there: an axis of one more or less"
    )
    assert alike(reference, reference)[1] == ()


def test_many_values_are_counted():
    reference = {f"p0/s0/v{number}": torch.zeros(1, number + 2) for number in range(12)}
    mine = {name: value[0] for name, value in reference.items()}
    [note] = alike(mine, reference)[1]
    assert note.endswith("; 4 more: an axis of one more or less") and note.count("`") == 16


# --- in float32 a value of many numbers is the same up to rounding alone: `compare.ROUNDING`

IDS = ((1, 2, 3),)
VALUE = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))


def judged(times: float) -> compare.Compared:
    """The judgement on a value that is so many times as far off as baseline runs are."""
    noise = 1e-5 * torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    members = {
        "truth": {"p0/s0/h": VALUE},
        f"{FLOAT32_WAY}a": {"p0/s0/h": VALUE + noise.roll(1, 0)},
        f"{FLOAT32_WAY}b": {"p0/s0/h": VALUE + noise.roll(2, 0)},
    }
    reference = compare.build_reference(members, Precision.FLOAT32)
    return compare.compare({"p0/s0/h": VALUE + times * noise}, reference, (IDS, IDS))


@pytest.mark.parametrize(("times", "verdict"), [(3.0, Verdict.MATCH), (80.0, Verdict.WRONG)])
def test_what_is_further_off_than_rounding_explains_is_not_the_same(times, verdict):
    found = judged(times)
    assert found.judgement.verdict is verdict
    assert found.passes is (verdict is Verdict.MATCH)
    [value] = found.judgement.observations
    assert value.verdict is verdict
    if not found.passes:
        assert "× noise off, where engines that compute the same are within 30" in value.message
        assert found.judgement.reason.startswith("1 of 1 values are off")


@pytest.mark.parametrize("times", [0.0, 1e6], ids=["zeros", "too long"])
def test_one_row_that_is_grossly_off_in_bf16_is_no_rounding(times: float):
    """The other rows, most of them, are right."""
    draw = torch.Generator().manual_seed(5)
    noise = 0.003 * torch.randn(5, 3, 64, generator=draw)
    runs = {str(n): {"p0/s0/h": (VALUE + one).bfloat16()} for n, one in enumerate(noise)}
    reference = compare.build_reference({"truth": {"p0/s0/h": VALUE}, **runs}, Precision.BF16)
    mine = runs["0"]["p0/s0/h"].clone()
    assert compare.compare({"p0/s0/h": mine}, reference, (IDS, IDS)).passes
    mine[-1] *= times
    found = compare.compare({"p0/s0/h": mine}, reference, (IDS, IDS))
    assert not found.passes and not compare.numerics_only(found.judgement)


def test_a_multiple_is_found_and_none_is_fitted_to_a_few_numbers():
    value = torch.linspace(-6, 6, 50)
    assert compare.multiple(value / 2, value) == 0.5
    assert compare.multiple(value.clamp(-3, 3), value) is None
    assert compare.multiple(torch.tensor(3.0), torch.tensor(4.0)) is None


# --- ids that float32 agrees on: in bf16 rounding's, unless numbers beside them show otherwise

TOP = 5


def compared(mine: list[int], *, beside: bool) -> compare.Compared:
    """Five ids, of which 40 and 41 are nearly equal, with or without the logits."""
    maker = torch.Generator().manual_seed(1)
    reference_values = torch.randn(97, generator=maker)
    reference_values[[10, 20, 40, 41, 50]] = torch.tensor([9.0, 8.0, 7.0, 6.999, 5.0])
    noise = 0.01 * torch.randn(5, 97, generator=maker)
    noise[:, 40], noise[:, 41] = 0.01, -0.03
    runs = {"truth": reference_values} | {
        str(n): (reference_values + one).bfloat16() for n, one in enumerate(noise)
    }

    def values(logits: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"p0/s0/ids": ids} | ({"p0/s0/logits": logits} if beside else {})

    reference = {way: values(run, run.float().topk(TOP).indices) for way, run in runs.items()}
    own = values(runs["0"], torch.tensor(mine))
    return compare.compare(own, compare.build_reference(reference, Precision.BF16), (IDS, IDS))


@pytest.mark.parametrize(
    ("mine", "beside", "passes", "numerics"),
    [
        ([10, 20, 41, 40, 50], True, True, True),
        ([20, 10, 40, 41, 50], True, False, False),
        ([10, 20, 40, 41, 7], True, False, False),
        ([10, 20, 41, 40, 50], False, False, True),  # nothing shows that the two are near
    ],
)
def test_another_order_is_judged_by_the_numbers_beside_it(
    mine: list[int], beside: bool, passes: bool, numerics: bool
) -> None:
    found = compared(mine, beside=beside)
    assert found.passes is passes
    assert compare.numerics_only(found.judgement) is numerics
    [ids] = [one for one in found.judgement.observations if "ids" in one.site]
    assert ids.verdict is (Verdict.MATCH if passes else Verdict.WRONG)


# --- prompts that are other ones on the two sides: what the evidence says of them

FIRST, SECOND = (7, 8, 9, 10), (7, 8, 5, 10)


def related(ours, theirs):
    """The relation of the prompts' ids that a comparison of the same values comes to."""
    reference = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    ways = ("float32:truth", "float32:split", "float32:sdpa")
    runs = compare.select_runs({f"{way}|p0/s0/x": reference for way in ways}, Precision.FLOAT32)
    ids, mine = (ours, theirs), {"p0/s0/x": reference}
    told = compare.compare(mine, compare.build_reference(runs, Precision.FLOAT32), ids)
    [one] = [one for one in told.judgement.relations if one.name == structure.PROMPT_IDS]
    return one


@pytest.mark.parametrize(
    ("ours", "theirs", "detail"),
    [
        (
            [(9, 9), (5, 6, 7), (8, 8, 8, 8), (8, 8, 8, 8)],
            [(9, 9), (5, 6, 7), (8, 8, 8, 8), (5, 6, 7)],
            "prompt 3: 4 ids instead of 3, at position 0 8 instead of 5",
        ),
        ([FIRST], [SECOND], "prompt 0: at position 2 9 instead of 5"),
        (
            [(*FIRST, 3, 4)],
            [FIRST],
            "prompt 0: 6 ids instead of 4, at position 4 3 instead of nothing",
        ),
    ],
)
def test_the_evidence_names_the_first_difference_of_the_prompts(ours, theirs, detail):
    found = related(ours, theirs)
    assert (found.holds, found.detail) == (False, detail)


def test_the_same_prompts_in_another_order_are_no_others():
    assert related([SECOND, FIRST], [FIRST, SECOND]).holds


def test_prompts_are_in_the_order_of_their_numbers():
    numbers = [0, 10, 11, 2]  # as a file has them whose keys are sorted as text
    seen = {f"layers|p{n}/s0/ids": torch.tensor([n]) for n in numbers}
    assert compare.prompt_ids(seen) == [[0], [2], [10], [11]]


@pytest.mark.parametrize(("ran", "missing"), [([0, 1, 0], []), ([0, 1], [2]), ([0, 0], [1])])
def test_the_prompt_that_did_not_run_is_named_also_beside_an_equal_one(ran, missing):
    def ids(numbers):
        return {Site.parse(f"p{n}/s0/ids"): torch.tensor([one]) for n, one in enumerate(numbers)}

    found = describe._other_prompts(ids(ran), ids([0, 1, 0]))
    assert [one.prompt for one in found] == missing

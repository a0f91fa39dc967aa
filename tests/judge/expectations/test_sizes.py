"""How far off a cell may be to be what an entry expects, and which words name no cause."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.cell import judgement
from conformance.judge.cell.diagnosis import extent
from conformance.judge.cell.measures import metrics
from conformance.judge.expectations import Entry, Finding, KnownGaps, Match, assess, load, update
from conformance.judge.expectations.assess import explains
from conformance.judge.expectations.sizes import TOO_FAR, bound_for, largest_error, says_nothing
from conformance.spec.records import (
    FLOAT32_LIMITS,
    LARGEST,
    Answer,
    Judged,
    Precision,
    Relation,
    Site,
    Verdict,
)
from tests.judge.cell import toy
from tests.known_runs import CELLS, TODAY, cell, results

KNOWN = load(Path(__file__).parents[3] / "known.yaml")
#: As an entry is that nothing predicts.
UNPREDICTED = KnownGaps(
    (
        Entry(
            Match(backend="vllm-pp1"),
            Verdict.WRONG,
            "another GELU",
            TODAY,
            link="x",
            says="observations are off",
            at_most=1e-3,
        ),
    )
)
#: What the judge says of vLLM's Bloom, whose GELU is another one.
GELU = {
    "reason": "1 of 2 observations are off, first logits of prompt 0: 278 × noise",
    "diagnosis": "no fault of the catalogue explains logits",
}
#: Of its logits.
SIZE = 1.82e-4


def off(size, verdict=Verdict.WRONG, site="p0/s0/logits"):
    return Judged(site, verdict, extra={} if size is None else {LARGEST: size})


def bloom(*sizes, **more):
    what = {"scenario": "clean", "case": "alone", "precision": Precision.FLOAT32, **GELU}
    return cell(
        "bloom",
        "vllm-pp1",
        verdict=Verdict.WRONG,
        observations=(Judged("p0/s0/tokens", Verdict.EXACT), *map(off, sizes)),
        **{**what, **more},
    )


def beside(verdict, *sizes, precision=Precision.BF16):
    return Answer(precision, verdict, "", observations=tuple(map(off, sizes)))


def finding(found):
    (assessed,) = assess(results(cells=[found]), UNPREDICTED, TODAY)
    return assessed


def test_a_bound_excuses_what_is_within_it_and_nothing_larger():
    assert finding(bloom(SIZE)).finding is Finding.KNOWN
    worse = finding(bloom(100 * SIZE))
    assert worse.finding is Finding.UNEXPECTED
    assert "it is 0.018 off" in worse.words and "at most 0.001" in worse.words
    # One observation of many is enough.
    assert finding(bloom(SIZE, 100 * SIZE, SIZE)).finding is Finding.UNEXPECTED


def test_what_has_no_size_is_not_excused_by_one():
    missing = bloom(SIZE, None)
    assert "not all that fails has a size" in finding(missing).words
    broken = bloom(SIZE, relations=(Relation("equal", holds=False),))
    shown = bloom(SIZE, relations=(Relation("equal", holds=False, gates=False),))
    assert [largest_error(one) for one in (bloom(), missing, broken)] == [None] * 3
    assert largest_error(shown) == SIZE
    aliased = replace(bloom(SIZE), observations=(off(SIZE), off(SIZE, Verdict.ALIASED)))
    assert largest_error(aliased) is None
    entry = Entry(Match(model="llama"), Verdict.WRONG, "why", TODAY, link="x", at_most=1.0)
    for verdict in (Verdict.ERROR, Verdict.MISSING, Verdict.CRASH):
        unsaid = replace(entry, verdict=verdict)
        assert not explains(unsaid, cell(verdict=verdict, observations=(off(SIZE),)))


@pytest.mark.parametrize(
    ("other", "known"),
    [
        (beside(Verdict.MATCH), True),
        (beside(Verdict.DRIFT, 0.05), True),  # fails no run by itself
        (beside(Verdict.VACUOUS), True),  # in bf16 a check may have no power
        (beside(Verdict.UNSUPPORTED), True),
        (beside(Verdict.WRONG, 0.5), False),
        (beside(Verdict.NONFINITE), False),
        (beside(Verdict.ERROR), False),
        (beside(Verdict.UNKNOWN), False),
        (beside(Verdict.WRONG, SIZE), True),
    ],
)
def test_what_fails_in_the_other_precision_must_be_within_the_bound_too(other, known):
    expected = Finding.KNOWN if known else Finding.UNEXPECTED
    assert finding(bloom(SIZE, beside=other)).finding is expected


SIZES = st.floats(0, 2, exclude_min=True)


@given(st.lists(SIZES, min_size=1, max_size=4), st.data(), SIZES, SIZES)
def test_a_larger_error_is_never_excused_by_more_entries(sizes, data, bound, more):
    bound = min(bound, 1.4)
    match = Match(model="bloom")
    entry = Entry(match, Verdict.WRONG, "why", TODAY, link="x", at_most=bound)
    entries = (*KNOWN.entries, entry)
    place = data.draw(st.integers(0, len(sizes) - 1))
    worse = [size + more * (index == place) for index, size in enumerate(sizes)]
    less, greater = (
        {index for index, one in enumerate(entries) if explains(one, bloom(*several))}
        for several in (sizes, worse)
    )
    assert greater <= less
    assert (len(entries) - 1 in less) == (max(sizes) <= bound)


@given(st.floats(1e-12, 2))
def test_a_bound_that_is_proposed_holds_and_bounds(size):
    bound = bound_for(size)
    if bound is not None:
        assert size < bound < min(TOO_FAR, size * 1.66)
        assert bound == float(f"{bound:.1e}")
    else:
        assert size > TOO_FAR / 1.66
    assert [bound_for(none) for none in (None, 0.0, math.inf, 3.0)] == [None] * 4


def test_the_judges_words_for_anything_that_is_off_name_no_cause():
    """As the judge writes them, of an activation and of logits."""
    sites = ["clean/p0/s0/stream.1", "clean/p0/s0/stream.2", "edited/p1/s2/logits"]
    judged = [
        Judged(site, Verdict.WRONG, "every token off, by up to 9.1e+02 × noise") for site in sites
    ]
    reason = judgement.reason_of(Verdict.WRONG, judged)
    parsed = [Site.parse(site) for site in sites]
    measured = [replace(one, q_max=900.0, ratios=(900.0, 1.0)) for one in judged]
    clauses = [
        extent.describe(parsed, parsed),
        extent.describe(parsed[:1], parsed),
        extent.goes_on(parsed, dict(zip(parsed, measured, strict=True))),
        extent.tokens_off(measured, FLOAT32_LIMITS),
    ]
    for words in [reason, *clauses, GELU["reason"], GELU["diagnosis"]]:
        assert words and says_nothing(words), words
        assert all(says_nothing(words[start : start + 9]) for start in range(len(words) - 9))


@pytest.mark.parametrize(
    "words",
    [
        "without the embedding's scale",
        "holds the value of the next layer",
        "kept after layer",
        "mlp after layer",
        "so the engine computed the value correctly and it was read wrongly",
        "holds the rows of prompt",
    ],
)
def test_words_of_a_cause_or_a_part_say_something(words):
    assert not says_nothing(words)


def wrong(size, reason=GELU["reason"], **more):
    return cell(verdict=Verdict.WRONG, reason=reason, observations=(off(size),), **more)


def updated(folder, text, found):
    path = folder / "known.yaml"
    path.write_text(text)
    passing = [one for one in results().cells if one.id != found.id]
    run = results(cells=[found, *passing])
    return update(text, load(path), run, CELLS, TODAY), run


BOUNDED = """\
known:
  - match: { model: llama, backend: hf, scenario: steering, case: first }
    verdict: wrong
    says: observations are off
    at_most: 1.0e-3 # a comment
    reason: definitions differ
    link: x
    date: 2026-11-01
"""


def test_an_update_bounds_what_has_no_words_of_its_own(tmp_path):
    found, run = updated(tmp_path, "known: []\n", wrong(0.0213))
    (tmp_path / "known.yaml").write_text(found.text)
    known = load(tmp_path / "known.yaml")
    (entry,) = known.entries
    assert entry.at_most == 0.032
    assert assess(run, known, TODAY)[0].finding is Finding.KNOWN
    telling, _ = updated(tmp_path, "known: []\n", wrong(0.0213, "holds the rows of prompt 1"))
    assert "at_most" not in telling.text


@pytest.mark.parametrize("size", [None, 1.2, 30.0])
def test_an_update_leaves_what_no_bound_holds_to_a_person(tmp_path, size):
    for text in ("known: []\n", BOUNDED):
        found, _ = updated(tmp_path, text, wrong(size))
        assert found.text == text and not found.changes
        (words,) = found.unsolved
        assert "write the entry yourself" in words


def test_an_update_keeps_a_bound_and_never_widens_it(tmp_path):
    kept, _ = updated(tmp_path, BOUNDED, wrong(5e-4))
    assert kept.text == BOUNDED
    sometimes = BOUNDED.replace("    date:", "    sometimes: true\n    date:")
    further, run = updated(tmp_path, sometimes, wrong(0.1))
    assert further.text.startswith(sometimes)
    assert "at_most: 0.15" in further.text
    path = tmp_path / "known.yaml"
    path.write_text(further.text)
    assert assess(run, load(path), TODAY)[0].finding is Finding.KNOWN


def measured(candidate, reference, *, centred=False):
    baseline = torch.stack([reference, reference * (1 + 1e-7)])
    noise_floor = toy.floor(reference, baseline, centred=centred, precision=Precision.FLOAT32)
    return toy.measure(candidate, noise_floor, FLOAT32_LIMITS)


def test_the_largest_error_is_of_the_worst_row_massive_dimension_or_shift():
    torch.manual_seed(0)
    reference = torch.randn(5, 64, dtype=torch.float64)
    one_row = reference.clone()
    one_row[3] *= 1.25
    assert measured(one_row, reference).largest == pytest.approx(0.25)
    assert measured(one_row, reference).error < 1e-6  # the median, which one row does not move
    massive = reference.clone()
    massive[:, 7] = 1000.0
    moved = massive.clone()
    moved[2, 7] = 1100.0
    assert measured(moved, massive).largest == pytest.approx(0.1)
    shifted = reference + 3.0
    mean_gone = shifted - shifted.mean(-1, keepdim=True)
    found = measured(mean_gone, shifted, centred=True)
    whole = metrics.norm(shifted, torch.ones_like(shifted, dtype=torch.bool))
    means = shifted.mean(-1).abs() * 8
    assert found.largest == pytest.approx(float((means / whole).max()))
    assert found.largest < 1
    zero = torch.zeros(1, 64, dtype=torch.float64)
    assert measured(zero + 1e-9, zero).largest == math.inf

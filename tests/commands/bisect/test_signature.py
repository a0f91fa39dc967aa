"""Signatures: what is the same result, and what says nothing of what was tested."""

from dataclasses import replace

import pytest

from conformance.commands.bisect.halving import Class, SignaturePart
from conformance.commands.bisect.signature import are_swapped, classify, is_same
from conformance.commands.bisect.trial import read_signatures
from conformance.spec.records import Group, Precision, Verdict
from tests.commands.bisect.states import BAD, GOOD, signature
from tests.known_runs import cell, results

GROUP = Group(
    "llama",
    "hf",
    layout="batched",
    identity={"layer_list": "model.layers", "model": "TransformersForCausalLM", "ranks": 1},
)


def of(group=GROUP, **more):
    found = read_signatures(results(cells=[cell(**more)], groups=[group] if group else []))
    return found.signatures[0] if found.signatures else found


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "single"},
        {"identity": {**GROUP.identity, "layer_list": "gpt_neox.layers"}},
        {"identity": {**GROUP.identity, "model": "GPTNeoXForCausalLM"}},
    ],
)
def test_another_layout_list_or_class_is_another_signature(change):
    assert of().layout == "batched at model.layers of TransformersForCausalLM"
    assert not is_same((of(),), (of(replace(GROUP, **change)),))


def test_what_is_measured_makes_no_difference():
    slow = replace(GROUP, load_seconds=9.0, identity={**GROUP.identity, "ranks": 2})
    failed = {"verdict": Verdict.WRONG}
    assert is_same((of(),), (of(slow, seconds=7.0, reason="furthest 1.2"),))
    one = of(**failed, diagnosis="0.41 of the stream after layer 3")
    two = of(**failed, diagnosis="0.43 of the stream after layer 3")
    assert is_same((one,), (two,))
    assert not is_same((one,), (of(**failed, diagnosis="0.41 of the stream after layer 2"),))


def test_a_failure_in_bf16_alone_is_not_the_one_in_float32():
    numerics = of(verdict=Verdict.WRONG, precision=Precision.BF16)
    meaning = of(verdict=Verdict.WRONG, precision=Precision.FLOAT32)
    assert not is_same((numerics,), (meaning,))
    passing = [of(verdict=Verdict.MATCH, precision=each) for each in Precision]
    assert is_same((passing[0],), (passing[1],))


def test_a_fault_of_ours_and_an_engine_that_cannot_be_imported_say_nothing():
    found = of(verdict=Verdict.UNKNOWN, harness=True, reason="no reference")
    assert found.harness and "no reference" in found.untestable
    group = replace(GROUP, reason="the engine cannot be imported: no module named vllm")
    found = of(group, verdict=Verdict.ERROR, reason=group.reason)
    assert found.untestable == group.reason and not found.harness


def test_an_engine_that_fails_is_a_signature():
    found = of(None, verdict=Verdict.ERROR, reason="KeyError at 0x7f12")
    assert (found.layout, found.diagnosis) == ("", "KeyError at #")


def test_classes_by_the_two_ends():
    third = signature(Verdict.WRONG)
    parts = (SignaturePart.VERDICT, SignaturePart.LAYOUT)
    assert classify(GOOD, GOOD, BAD, parts, Class.UNTESTABLE) is Class.GOOD
    assert classify(BAD, GOOD, BAD, parts, Class.UNTESTABLE) is Class.BAD
    for counts in Class:
        assert classify(third, GOOD, BAD, parts, counts) is counts


def test_ends_are_swapped_only_where_nothing_got_worse():
    passes, fails = signature(), signature(Verdict.WRONG)
    refused = signature(Verdict.UNSUPPORTED)
    assert are_swapped(fails, passes)
    assert not are_swapped(passes, fails)
    assert not are_swapped(fails + passes, passes + fails)
    assert not are_swapped(fails + passes, passes + refused)
    assert not are_swapped(refused, passes)
    assert are_swapped(fails + fails, passes + fails)

"""Bitwise comparison of runs, environments and texts; equal pairs; aliasing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.cell.judge_cell import compare_exact
from conformance.judge.cell.measures import floor, relations, structure
from conformance.judge.cell.measures.relations import compare_environments
from conformance.spec.records import Site
from tests.judge.cell import toy


def test_every_mismatch_is_listed_with_its_place_and_size() -> None:
    left = {"b": torch.zeros(2, 3), "a": torch.zeros(2), "gone": torch.zeros(1)}
    right = {"b": torch.zeros(2, 3), "a": torch.zeros(3), "new": torch.zeros(1)}
    right["b"][1, 2] = 0.5
    right["b"][0, 1] = -0.25
    assert compare_exact(left, right) == (
        ("a", "shape [2] against [3]"),
        ("b", "2 of 6 elements differ, by up to 0.5 at [1, 2]"),
        ("gone", "only on the left"),
        ("new", "only on the right"),
    )
    assert compare_exact(left, {site: value.clone() for site, value in left.items()}) == ()


def test_a_cast_is_a_mismatch_and_so_is_a_sign_of_zero() -> None:
    one = {"a": torch.ones(2)}
    assert "float32 against" in compare_exact(one, {"a": torch.ones(2).bfloat16()})[0].message
    assert compare_exact({"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])})
    assert not compare_exact({"a": torch.tensor([torch.nan])}, {"a": torch.tensor([torch.nan])})
    found = compare_exact({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, torch.nan])})
    assert found[0].message == "1 of 2 elements differ, by up to inf at [1]"


@given(st.integers(0, 23), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_a_single_bit_anywhere_is_found(at: int, kind: torch.dtype) -> None:
    left = (torch.arange(24).reshape(2, 3, 4) + 1).to(kind)
    right = left.clone()
    right.view(-1)[at] += 1
    [found] = compare_exact({"x": left}, {"x": right})
    index = [at // 12, at // 4 % 3, at % 4]
    assert found.message == f"1 of 24 elements differ, by up to 1 at {index}"


def observed(
    arrived: float, layer: int | None = 3, run: str = "edited"
) -> dict[Site, torch.Tensor]:
    return {
        Site("source", run=run): torch.ones(2, 2),
        Site("arrived", run=run, layer=layer): torch.full((2, 2), arrived),
    }


def test_an_equal_pair_must_be_equal_where_it_is_in_the_reference() -> None:
    reference = observed(1.0) | observed(7.0, run="clean")
    clean = observed(5.0, run="clean")
    assert relations.equal_within(observed(1.0) | clean, reference, ("source", "arrived")).holds
    broken = relations.equal_within(observed(1.001) | clean, reference, ("source", "arrived"))
    assert not broken.holds and "edited/p0/s0/arrived.3" in broken.detail
    assert relations.equal_within(observed(1.0) | clean, reference, ("source", "arrived.3")).holds


def test_a_pair_that_was_not_observed_does_not_hold() -> None:
    reference = observed(1.0)
    assert not relations.equal_within({}, reference, ("source", "arrived")).holds
    assert not relations.equal_within(observed(1.0), reference, ("source", "other")).holds
    assert not relations.equal_within(observed(1.0), observed(2.0), ("source", "arrived")).holds


def floors(values: dict[Site, torch.Tensor]) -> dict[Site, floor.Floor]:
    return {
        site: toy.floor(value.double(), value.double().repeat(4, 1, 1) * 1.001)
        for site, value in values.items()
    }


def streams(count: int, *, steps: bool = False) -> dict[Site, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sites = [Site("x", step=i) if steps else Site("stream", layer=i) for i in range(count)]
    return {site: torch.randn(2, 8, generator=draw) for site in sites}


@pytest.mark.parametrize(
    ("steps", "same", "aliases"),
    [
        (False, (), 0),
        (False, (2, 3), 3),
        (False, (3,), 0),  # a pair of neighbours is another layer's value
        (True, (0, 1, 2, 3), 5),
        (True, (3,), 0),  # one stale step is not
    ],
)
def test_places_that_hold_the_last_value_are_aliased(steps, same, aliases):
    reference = streams(5, steps=steps)
    sites = list(reference)
    held = reference | {sites[place]: reference[sites[4]] for place in same}
    found = relations.aliased(held, floors(reference))
    assert set(found) == ({sites[place] for place in (*same, 4)} if aliases else set())
    assert len(found) == aliases


def test_zeros_are_lost_values_and_what_the_reference_holds_equal_is_no_alias() -> None:
    reference = streams(4)
    zeros = dict.fromkeys(reference, torch.zeros(2, 8))
    assert relations.aliased(zeros, floors(reference)) == {}
    equal = dict.fromkeys(reference, torch.ones(2, 8))
    assert relations.aliased(equal, floors(equal)) == {}


def test_a_layers_partner_may_be_the_next_ones() -> None:
    stream = {Site("stream", layer=i): torch.full((2, 2), float(i + 1)) for i in range(3)}
    given_ = {Site("input", layer=i): torch.full((2, 2), float(i)) for i in range(3)}
    reference = stream | given_
    held = relations.equal_within(reference, reference, ("stream", "input+1"))
    assert held.holds and held.detail == "2 pairs"
    broken = reference | {Site("input", layer=2): torch.full((2, 2), 2.5)}
    found = relations.equal_within(broken, reference, ("stream", "input+1"))
    assert not found.holds and "p0/s0/stream.1 and p0/s0/input.2" in found.detail
    assert not relations.equal_within(reference, reference, ("stream", "input")).holds, (
        "no such pair"
    )


ONE = torch.tensor([1.0, 2.0])
OTHER = torch.tensor([1.0, 2.5])


@pytest.mark.parametrize(
    ("columns", "details"),
    [
        ({"a": {"x": ONE}}, {"a": []}),
        ({"a": {"x": ONE}, "a@old": {}}, {"a": [], "a@old": []}),
        ({"a": {"x": ONE}, "a@old": {"x": ONE.clone()}}, {"a": [(True, "the same in a@old")]}),
        (
            {"a": {"x": ONE}, "a@old": {"x": ONE.double()}},
            {"a": [(False, "others in a@old (x: torch.float32 against torch.float64)")]},
        ),
        (
            {"a@1": {"x": ONE}, "a@2": {"x": ONE}, "a@3": {"w": ONE, "x": OTHER}},
            {
                "a@1": [(False, "the same in a@2; others in a@3 (w: only on the right)")],
                "a@3": [(False, "others in a@1, a@2 (w: only on the left)")],
            },
        ),
    ],
)
def test_the_columns_of_a_backend_say_which_others_have_the_same_bits(columns, details):
    found = compare_environments(columns)
    for name, said in details.items():
        assert [(each.holds, each.detail) for each in found[name]] == said


def bytes_of(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@given(st.text(), st.text())
def test_two_texts_agree_when_they_are_the_same(left: str, right: str) -> None:
    assert (structure.other_text(bytes_of(left), bytes_of(right)) == "") is (left == right)


def test_a_difference_of_texts_quotes_both_and_only_rows_of_bytes_are_texts() -> None:
    said = structure.other_text(bytes_of("nothing"), bytes_of("nothung"))
    assert said == "says 'nothing' instead of 'nothung'"
    assert structure.is_text(bytes_of("x"))
    assert not structure.is_text(torch.zeros(3, dtype=torch.int64))
    assert not structure.is_text(torch.zeros(3, 2, dtype=torch.uint8))

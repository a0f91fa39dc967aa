import torch

from conformance.judge.measures.relations import compare_environments

ONE = torch.tensor([1.0, 2.0])
OTHER = torch.tensor([1.0, 2.5])


def test_a_backend_in_one_environment_has_nothing_to_be_compared_with():
    assert compare_environments({"a": {"x": ONE}}) == {"a": ()}
    assert compare_environments({"a": {"x": ONE}, "a@old": {}}) == {"a": (), "a@old": ()}


def test_equal_bits_everywhere_hold():
    found = compare_environments({"a": {"x": ONE}, "a@old": {"x": ONE.clone()}})
    (relation,) = found["a"]
    assert relation.holds
    assert relation.detail == "the same in a@old"
    (relation,) = compare_environments({"a": {"x": ONE}, "a@old": {"x": ONE.double()}})["a"]
    assert not relation.holds


def test_where_they_differ_it_says_which_and_where_first():
    columns = {"a@1": {"x": ONE}, "a@2": {"x": ONE}, "a@3": {"w": ONE, "x": OTHER}}
    found = compare_environments(columns)
    (relation,) = found["a@1"]
    assert not relation.holds
    assert relation.detail == "the same in a@2; others in a@3 (w: only on the right)"
    assert "others in a@1, a@2" in found["a@3"][0].detail

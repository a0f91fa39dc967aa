import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.measures.across_environments import Environments, alike

ONE = torch.tensor([1.0, 2.0])
OTHER = torch.tensor([1.0, 2.5])


def relations(observed):
    environments = Environments(observed)
    return {name: environments.relations(name) for name in observed}


def test_a_backend_in_one_environment_has_nothing_to_be_compared_with():
    assert relations({"a": {"x": ONE}}) == {"a": ()}


def test_equal_bits_everywhere_hold():
    found = relations({"a": {"x": ONE}, "a@old": {"x": ONE.clone()}})
    (relation,) = found["a"]
    assert relation.holds
    assert relation.detail == "the same in a@old"


def test_where_they_differ_it_says_which_and_where_first():
    found = relations({"a@1": {"x": ONE}, "a@2": {"x": ONE}, "a@3": {"w": ONE, "x": OTHER}})
    (relation,) = found["a@1"]
    assert not relation.holds
    assert relation.detail == "the same in a@2; others in a@3 (w: only on the right)"
    assert "others in a@1, a@2" in found["a@3"][0].detail


def test_what_observed_nothing_is_not_compared():
    found = relations({"a": {"x": ONE}, "a@old": {}})
    assert found["a"] == ()


@given(st.lists(st.sampled_from([ONE, OTHER, ONE.double()]), min_size=1, max_size=8))
def test_the_sets_are_those_of_equal_bits(values):
    columns = {f"c{index}": {"x": value} for index, value in enumerate(values)}
    sets = alike(columns)
    assert sorted(name for names in sets for name in names) == sorted(columns)
    for names in sets:
        assert len({id(columns[name]["x"]) for name in names} & {id(v) for v in values}) >= 1
        assert len({(str(columns[n]["x"].dtype), *columns[n]["x"].tolist()) for n in names}) == 1
    assert len(sets) == len({(str(v.dtype), *v.tolist()) for v in values})

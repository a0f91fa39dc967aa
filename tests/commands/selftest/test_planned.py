"""What a self-test runs: faults where a model has what they need, and gaps that are no alarms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.commands.selftest import run
from conformance.commands.selftest.fault import CLIENTS
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.faulty_columns import Measured, Plan, plan
from conformance.errors import ConformanceError
from conformance.judge.expectations import Conditions, Entry, Match
from conformance.runner.store import RunFolder, open_run
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import manifest
from conformance.spec.records import PARTS, Backend, Cell, Group, Model, Source, Thresholds, Verdict
from tests import ours
from tests.known_runs import TODAY
from tests.known_runs import cell as result

ROOT = Path(__file__).parents[3]
SCENARIOS = ours.scenarios()
TINY = (Source("tiny"),)
DENSE = Model("llama", "llama", TINY)
MIXTURE = Model("mixtral", "mixtral", TINY, parts=(*PARTS, "experts"))
BACKENDS = (Backend("hf", "hf"), Backend("vllm-pp1", "vllm"))
KNOWN = manifest.load(ROOT / "models.yaml")
HF = tuple(backend for backend in KNOWN.backends if backend.id == "hf")


def planned(*names: str, gaps: tuple[Entry, ...] = ()) -> Plan:
    return plan([FAULTS[name] for name in names], (DENSE, MIXTURE), BACKENDS, gaps=gaps)


def test_a_fault_of_experts_and_its_fault_free_cells_are_those_of_models_that_have_some() -> None:
    found = planned("router-tie", "error-swallowed")
    injected = {(one.model, one.variant.fault.id) for one in found.faulty}
    assert ("mixtral", "router-tie") in injected
    assert ("llama", "router-tie") not in injected
    assert ("llama", "error-swallowed") in injected
    assert Cell("mixtral", "hf", "router", "all") in found.fault_free
    assert not [
        cell for cell in found.fault_free if (cell.model, cell.scenario) == ("llama", "router")
    ]


def test_a_model_that_is_not_general_has_only_what_no_other_has() -> None:
    faults = [FAULTS[name] for name in ("router-tie", "error-swallowed")]
    found = plan(faults, (MIXTURE, DENSE), BACKENDS, general=("llama",))
    injected = {(one.model, one.variant.fault.id) for one in found.faulty}
    assert injected == {("mixtral", "router-tie"), ("llama", "error-swallowed")}
    again = plan(faults, (MIXTURE, replace(MIXTURE, id="other"), DENSE), BACKENDS, general=())
    injected = {(one.model, one.variant.fault.id) for one in again.faulty}
    assert injected == {("mixtral", "router-tie"), ("mixtral", "error-swallowed")}


def test_only_what_a_known_gap_explains_is_no_alarm(tmp_path: Path) -> None:
    match = Match(model="llama", backend="vllm*", scenario="errors", case="order")
    gap = Entry(match, Verdict.WRONG, "why", TODAY, says="the layer before")
    found = planned("error-swallowed", gaps=(gap,))
    [cell] = [cell for cell in found.fault_free if cell in gap]

    def left(verdict: Verdict, words: str, *, harness: bool = False) -> set[Cell]:
        judged = {
            one.id: result(one.model, one.backend, one.scenario, one.case)
            for one in found.fault_free
        }
        judged[cell.id] = replace(judged[cell.id], verdict=verdict, reason=words, harness=harness)
        return set(found.fault_free) - set(found.sound(RunFolder(tmp_path), judged))

    assert left(Verdict.WRONG, "holds the layer before") == {cell}
    assert left(Verdict.WRONG, "holds the layer before", harness=True) == set()
    assert left(Verdict.WRONG, "holds anything") == set()
    assert left(Verdict.MATCH, "") == set()


@pytest.mark.parametrize(
    ("when", "excused"),
    [
        (Conditions(architecture="llama"), True),
        (Conditions(architecture="bloom"), False),
        (Conditions(engine_class="Transformers*"), True),
        (Conditions(engine_class="LlamaForCausalLM"), False),
        (Conditions(device="cuda"), False),
    ],
)
def test_a_gap_explains_nothing_under_other_circumstances(
    tmp_path: Path, when: Conditions, *, excused: bool
) -> None:
    gap = Entry(Match(backend="vllm*"), Verdict.WRONG, "why", TODAY, says="off", when=when)
    found = planned("error-swallowed", gaps=(gap,))
    folder = RunFolder(tmp_path)
    identity = {"model": "TransformersForCausalLM", "device": "cpu"}
    folder.group_folder("llama", "vllm-pp1").write_group(
        Group("llama", "vllm-pp1", identity=identity)
    )
    judged = {
        one.id: replace(
            result(one.model, one.backend, one.scenario, one.case),
            verdict=Verdict.WRONG,
            reason="1 observation is off",
        )
        for one in found.fault_free
    }
    flagged = found.sound(folder, judged)
    assert excused is all((one.model, one.backend) != ("llama", "vllm-pp1") for one in flagged)
    assert any(one.backend == "hf" for one in flagged)


def request(*models: str, **more: Any) -> run.SelfTestRequest:
    """What the command asks for, on all backends that faults are injected into."""
    by_id = {model.id: model for model in KNOWN.models}
    asked = run.SelfTestRequest(
        models=tuple(by_id[name] for name in models),
        backends=run.default_backends(KNOWN.backends),
        scenarios=(ROOT / "scenarios",),
        reports=Path(),
        thresholds=Thresholds(),
        jobs=2,
    )
    return replace(asked, **more)


def asked(models: tuple[str, ...], **more: Any) -> Plan:
    return run._planned(request(*models, **more), SCENARIOS)


def test_limits_are_measured_of_every_case_of_one_model_and_of_a_few_of_the_first() -> None:
    few = Measured("gpt2", run.QUICK_MEASURED, run.QUICK_TRIALS)
    assert asked(("gpt2", "llama")).measured == (few, Measured("llama"))
    assert asked(("llama", "gpt2")).measured == (Measured("llama"),)
    assert asked(("gpt2", "llama"), quick=True).measured == (few,)
    assert asked(("gpt2", "llama"), expression="mlp-lost").measured == (few,)
    every = (Measured("gpt2"), Measured("llama"))
    assert asked(("gpt2", "llama"), quick=True, sensitivity=True).measured == every
    cases = {case.key for one in SCENARIOS.values() for case in one.expand(4)}
    assert cases.issuperset(run.QUICK_MEASURED)


def test_where_faults_act_is_asked_where_none_and_no_backend_is_left_out() -> None:
    assert asked(("llama",)).whole and asked(("llama",), quick=True).whole
    assert not asked(("llama",), expression="mlp-lost").whole
    assert not asked(("llama",), backends=HF).whole
    found = asked(("llama",))
    assert not found.only(found.models[0]).whole, "the faults of one model are a part"


def of_manifest(models: tuple[str, ...], *names: str, general: Any) -> Plan:
    return plan(
        [FAULTS[name] for name in names],
        [model for model in KNOWN.models if model.id in models],
        run.default_backends(KNOWN.backends),
        general=general,
    )


def test_each_kind_of_fault_between_clients_is_in_the_whole_selftest_of_one_tiny_model() -> None:
    names = [fault.id for fault in FAULTS.values() if set(fault.backends) & set(CLIENTS)]
    assert len(names) == 3
    found = of_manifest(run.MODELS, *names, general=run.MODELS)
    injected = {(one.model, one.backend.id, one.variant.fault.id) for one in found.faulty}
    assert injected == {("llama", backend, name) for backend in CLIENTS for name in names}
    named = of_manifest(("gpt2",), *names, general=None)  # by somebody who asks for that model
    assert {one.backend.id for one in named.faulty} == set(CLIENTS)


def test_beside_clients_only_what_they_send_runs_without_a_fault() -> None:
    found = of_manifest(("llama",), "client-rows", "zeros", general=None)
    fault_free = {(cell.backend, cell.scenario) for cell in found.fault_free}
    traced = {(name, "read_all") for name in ("hf", "vllm-pp1", "vllm-pp2")}
    assert fault_free == traced | {(name, "tenants") for name in CLIENTS}
    found = of_manifest(("llama",), "zeros", general=None)
    assert {backend.id for backend in found.backends} == {"hf", "vllm-pp1", "vllm-pp2"}


def small(reports: Path, **more: Any) -> run.SelfTestRequest:
    given = {"backends": HF, "reports": reports, "expression": "layer-off", "quick": True, **more}
    return request("llama", **given)


@pytest.mark.engine
def test_what_was_gathered_stays_and_what_is_missing_is_gathered(tmp_path: Path) -> None:
    folder, whole = run.run(small(tmp_path), cache_folder(), lambda _: None)
    assert whole is not None and whole.rows
    group = folder.group_folder("llama", "hf@faults+float32")
    [lost, *kept] = sorted(group.path.glob("cells/*@layer-off*"))
    written = {cell: cell.stat().st_mtime_ns for cell in kept}
    (lost / "outcome.json").unlink()
    again = small(tmp_path, resume=folder.id)
    same, resumed = run.run(again, cache_folder(), lambda _: None)
    assert same.path == folder.path and resumed is not None
    assert (lost / "outcome.json").is_file()
    assert {cell: cell.stat().st_mtime_ns for cell in kept} == written
    assert [row.ending for row in resumed.rows] == [row.ending for row in whole.rows]


def test_one_that_was_begun_with_other_options_is_refused(tmp_path: Path) -> None:
    first = small(tmp_path)
    folder = run._folder(first, run._planned(first, SCENARIOS))
    assert open_run(tmp_path, folder.id).path == folder.path
    for way in ("resume", "again"):
        same = small(tmp_path, **{way: folder.id})
        assert run._folder(same, run._planned(same, SCENARIOS)).path == folder.path
        for more in ({"expression": "token-off or write-dropped"}, {"quick": False}):
            other = replace(same, **more)
            with pytest.raises(ConformanceError, match="other options"):
                run._folder(other, run._planned(other, SCENARIOS))


def test_the_controls_are_not_tried_on_less_than_they_ask_for(tmp_path: Path) -> None:
    """Else the sound judge would seem to miss what was never injected."""
    first = small(tmp_path)
    folder = run._folder(first, run._planned(first, SCENARIOS))
    with pytest.raises(ConformanceError, match="other options"):
        next(run.controlled(small(tmp_path, again=folder.id, quick=False)))

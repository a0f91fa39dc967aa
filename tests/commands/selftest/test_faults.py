"""The list of faults: each can be asked for, stored, and is expected by cases that exist."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from conformance.commands.selftest import controls, faulty_columns, table
from conformance.commands.selftest import run as command
from conformance.commands.selftest.fault import Fault, Point, find
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.faults_page import faults_page
from conformance.errors import ConformanceError
from conformance.runner.store.files import safe
from conformance.spec.inputs import manifest
from conformance.spec.records import Side
from tests import ours

ROOT = Path(__file__).parents[3]
VARIANTS = [variant for fault in FAULTS.values() for variant in fault.variants()]
SCENARIOS = ours.scenarios()


def test_every_variant_has_a_name_of_its_own_that_can_be_a_folder_and_is_found_by_it():
    names = [variant.id for variant in VARIANTS]
    assert len(set(names)) == len(names)
    for variant in VARIANTS:
        assert safe(f"vllm-pp2@{variant.id}")
        assert find(FAULTS, variant.id) == variant


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_every_fault_names_cases_that_exist_and_a_verdict_that_suits_it(fault):
    assert fault.cases
    for name in fault.cases:
        scenario, case = name.split(".", 1)
        assert case in SCENARIOS[scenario].cases
    assert all(verdict.passes == fault.silent for verdict in fault.verdicts)
    assert pickle.loads(pickle.dumps(fault)).id == fault.id, "a process that judges gets it"
    assert fault.summary.endswith(".") and len(fault.summary) > 15
    assert not (fault.short and not fault.alone), "only a group of its own has short limits"


def test_faults_of_the_transport_are_injected_where_there_is_one():
    for fault in FAULTS.values():
        if fault.side is Side.PIPELINE or fault.point in {Point.RECORD, Point.REPLAY}:
            assert fault.backends == ("vllm-pp2",)


def injected_by_default(*, quick: bool) -> dict[str, tuple[Fault, ...]]:
    """The faults of each model where the command names none."""
    known = {model.id: model for model in manifest.load(ROOT / "models.yaml").models}
    faults = command.chosen_faults("", quick=quick)
    chosen = [known[name] for name in command.default_models(quick=quick)]
    shares = faulty_columns.shared_out(faults, chosen, command.MODELS)
    return {model.id: own for model, own in shares}


@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
def test_most_injections_act_inside_of_the_engine_nnsight_or_the_relay(quick: bool):
    """As the self-test is asked for by default, whole and quick."""
    entries = manifest.load(ROOT / "models.yaml")
    known = {model.id: model for model in entries.models}
    backends = command.default_backends(entries.backends)
    most = command.QUICK_VARIANTS if quick else None
    injected = [
        one.variant.fault.point.inside
        for model, faults in injected_by_default(quick=quick).items()
        for one in faulty_columns.columns(faults, known[model], backends, most)
        for _ in one.cells
    ]
    assert sum(injected) >= table.INSIDE * len(injected)


def test_what_few_models_have_is_injected_on_one_of_them_and_nothing_in_further_families():
    shares = injected_by_default(quick=False)
    for fault in (
        *("softcap-window", "rope-long", "longrope-factors"),
        *("router-tie", "given-dropped", "latent-norm"),
    ):
        assert sum(FAULTS[fault] in own for own in shares.values()) == 1, fault
    assert set(command.CLEAN_MODELS) <= shares.keys()
    assert not any(shares[model] for model in command.CLEAN_MODELS)


def test_a_name_that_is_no_fault_is_refused():
    with pytest.raises(ConformanceError, match="there is no fault 'half'"):
        find(FAULTS, "half")


def test_the_page_of_faults_is_as_the_records_are():
    """`make docs` writes it anew."""
    assert (ROOT / "docs" / "faults.md").read_text(encoding="utf-8") == faults_page()


def test_what_stands_for_the_second_reading_is_there():
    """Every fault, gate and test that the table of docs/selftest.md names, for each point."""
    page = (ROOT / "docs" / "selftest.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+): [^|]* \| ([^|]*) \|$", page, re.MULTILINE)
    assert [int(point) for point, _ in rows] == list(range(1, 13))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = set(re.findall(r"^def (test_\w+)\(", "\n".join(sources), re.MULTILINE))
    there = {"fault": FAULTS.keys(), "gate": controls.CONTROLS.keys(), "test": tests}
    named = [
        (kind.removesuffix("s"), name)
        for _, cell in rows
        for part in cell.split("; ")
        for kind, _, names in [part.partition(" ")]
        for name in re.findall(r"`([^`]+)`", names)
    ]
    assert len({name for _, name in named}) == len(named) > 12
    assert [(kind, name) for kind, name in named if name not in there[kind]] == []


CAUGHT = {case.split(".", 1)[0] for one in FAULTS.values() if not one.silent for case in one.cases}


def test_no_scenario_is_without_a_fault_that_it_must_catch():
    assert sorted(set(SCENARIOS) - CAUGHT) == []


def test_a_case_with_settings_of_its_own_meets_faults_in_a_load_of_its_own():
    """A worker that runs many faults has one engine, with the settings of the others."""
    asking = {
        f"{name}.{case.name}"
        for name, scenario in SCENARIOS.items()
        for case in scenario.expand(4)
        if case.settings
    }
    for fault in FAULTS.values():
        if asking & set(fault.cases) and fault.backends != ("hf",):
            assert fault.alone and set(fault.cases) <= asking, fault.id

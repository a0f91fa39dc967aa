"""`conformance run` on real engines, from the shell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import command, ours
from tests.end_to_end.conftest import COLUMNS, PROGRAMS, SERVED, SERVER, Ran, conformance

pytestmark = pytest.mark.engine


def test_every_cell_of_a_tiny_llama_passes_on_every_backend(llama: Ran) -> None:
    cells = llama.results.cells
    failed = {c.id: c.reason for c in cells if not c.verdict.passes and not c.expected}
    assert failed == {}
    assert llama.code == 0, llama.output


def test_all_scenarios_and_three_backends_are_there(llama: Ran) -> None:
    cells = llama.results.cells
    assert {cell.backend for cell in cells} == {*COLUMNS, SERVER}
    assert llama.cells(SERVER).keys() == {f"{SERVED}-alone"}
    elsewhere = "chunked preempt router forced_experts long_context extract samples"
    programs = {name.replace("-", "_") for name in PROGRAMS}
    planned = {*programs, *ours.scenarios()} - set(elsewhere.split())
    assert {cell.scenario for cell in cells if cell.backend != "hf"} == planned


def test_engines_prove_what_they_are(llama: Ran) -> None:
    groups = {group.backend: group for group in llama.results.groups}
    assert groups["vllm-pp1"].identity["pipeline_size"] == 1
    assert groups["vllm-pp2"].identity["stages"] == [[0, 2], [2, 4]]
    assert groups["vllm-pp2"].identity["served"] in {"relay", "native"}
    assert groups["hf"].layout == "batched"
    assert groups["vllm-pp1"].layout == "dual"


def test_two_stages_give_the_bits_of_one(llama: Ran) -> None:
    relations = [
        relation
        for cell in llama.results.cells
        if cell.backend == "vllm-pp2"
        for relation in cell.relations
        if relation.name == "bitwise equal to vllm-pp1"
    ]
    judged = [c for c in llama.results.cells if c.backend == "vllm-pp2" and c.verdict.passes]
    assert len(relations) >= len(judged) > 0
    assert all(relation.holds for relation in relations)


def test_judging_again_gives_the_same_verdicts_and_other_limits_need_the_tensors(
    llama: Ran, tmp_path: Path
) -> None:
    copy = tmp_path / "reports"
    shutil.copytree(llama.reports, copy, symlinks=True)
    code, said = command.run("judge", "latest", "--reports", str(copy))
    assert code == 0, said
    same = Ran(code, said, copy)
    assert [c.verdict for c in same.results.cells] == [c.verdict for c in llama.results.cells]
    results = (same.folder.path / "results.json").read_bytes()
    code, said = command.run("judge", "latest", "--widen", "20", "--reports", str(copy))
    assert code == 2
    assert "tensors were not kept" in said and "conformance run --keep all" in said
    assert (same.folder.path / "results.json").read_bytes() == results


def test_resuming_runs_only_what_is_missing(llama: Ran, tmp_path: Path) -> None:
    copy = tmp_path / "reports"
    shutil.copytree(llama.reports, copy, symlinks=True)
    group = Ran(0, "", copy).folder.group_folder("llama", "vllm-pp1+float32")
    lost = group.cell("steering.middle-large-all")
    kept = group.cell("clean.alone") / "outcome.json"
    before = kept.stat().st_mtime_ns
    shutil.rmtree(lost)
    same = [word for place in llama.folder.plan().scenarios for word in ("--scenarios", place)]
    again = conformance(copy, "run", "--resume", "latest", *same)
    assert again.code == 0, again.output
    assert (lost / "outcome.json").is_file()
    assert kept.stat().st_mtime_ns == before
    assert [c.verdict for c in again.results.cells] == [c.verdict for c in llama.results.cells]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-m", "lama"], "there is no model 'lama'"),
        (["run", "-b", "vllm"], "there is no backend 'vllm'"),
        (["run", "-k", "and"], "cannot read the expression"),
        (["run", "-k", "nosuchcell"], "no cell in tier 'default' matches"),
        (["show", "clean", "--run", "never"], "there is no run 'never'"),
        (["show", "clean", "--run", "never"], "was it a check?"),
    ],
)
def test_bad_input_is_refused_with_exit_2_and_starts_nothing(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    code, said = command.run(*arguments, "--reports", str(tmp_path / "reports"))
    assert code == 2
    assert words in said
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
def test_own_streams_come_out_of_an_engine_whose_core_is_another_process(tmp_path: Path) -> None:
    ran = conformance(tmp_path, "run", "-m", "llama", "-b", "vllm-async", "-k", "clean and alone")
    assert ran.code == 0, ran.output
    found = ran.folder.observations("llama", "vllm-async", "own_streams.all")
    assert {str(value.dtype) for value in found.values()} == {"torch.bfloat16"}
    assert {value.shape[-1] for value in found.values()} == {256}

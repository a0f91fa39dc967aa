"""Who stands behind a model's reference: a column of this run, or an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.errors import ConformanceError
from conformance.judge.runs import witness as ledgers
from conformance.judge.runs.witness import (
    Confirmed,
    Ledger,
    excerpt,
    explain_trust,
    find_confirmation,
    find_earlier,
    ledger,
)
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.inputs import manifest
from conformance.spec.records import (
    Backend,
    Column,
    Group,
    Model,
    Outcome,
    Precision,
    Status,
    Witness,
    to_json,
)

ROOT = Path(__file__).parents[3]
MODEL = Model("m", "llama", ())
HF = Column(Backend("hf", "hf"))
ONE, TWO = (Column(Backend(f"vllm-pp{n}", "vllm", pipeline=n)) for n in (1, 2))
CASE, SITE = "without_nnsight.all", "p0/s0/logits"
LOGITS = torch.randn(300, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
ENTRY = Confirmed(
    *("m", "llama", "LlamaForCausalLM", {"vllm": "0.32.0"}, 1e-6, 1e-7),
    truth=excerpt({SITE: LOGITS}),
)


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "confirmed.json"
    path.write_text(to_json(Ledger((ENTRY,))), encoding="utf-8")
    monkeypatch.setattr(ledgers, "ledger", lambda: ledger(path))
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    ways = {f"truth|{SITE}": LOGITS, f"float32_sdpa|{SITE}": LOGITS * (1 + 1e-6)}
    folder.write_cell(MODEL.id, REFERENCE.id, CASE, Outcome(Status.OK), ways)
    return folder


def engine(
    run: RunFolder,
    column: Column,
    off: float,
    definition: str = "LlamaForCausalLM",
    status: Status = Status.OK,
) -> None:
    folder = gathered_in(column.id, Precision.FLOAT32)
    account = (MODEL.id, column.id, Precision.FLOAT32, status, "its own words")
    group = Group(*account, identity={"model": definition})
    run.group_folder(MODEL.id, folder).write_group(group)
    noise = torch.randn(300, generator=torch.Generator().manual_seed(5))
    run.write_cell(MODEL.id, folder, CASE, Outcome(Status.OK), {SITE: LOGITS + off * noise})


@pytest.mark.parametrize(
    ("definition", "off", "status", "witness", "words"),
    [
        ("LlamaForCausalLM", 1e-6, Status.OK, Witness.CONFIRMED, "LlamaForCausalLM"),
        ("LlamaForCausalLM", 1e-2, Status.OK, Witness.DISAGREES, "LlamaForCausalLM"),
        ("TransformersForCausalLM", 0.0, Status.OK, Witness.SHARED, "transformers' own code"),
        ("", 0.0, Status.UNSUPPORTED, Witness.UNKNOWN, "its own words"),
    ],
)
def test_a_definition_of_its_own_confirms_the_reference_or_disagrees(
    run: RunFolder, definition: str, off: float, status: Status, witness: Witness, words: str
) -> None:
    engine(run, ONE, off, definition, status)
    found = find_confirmation(run, MODEL, [HF, ONE])
    assert found.witness is witness and words in found.words
    measured = witness in (Witness.CONFIRMED, Witness.DISAGREES)
    assert (found.distance is not None) is measured and found.prompts == measured


def test_the_hf_column_shares_the_references_code_and_is_no_witness(run: RunFolder) -> None:
    assert find_confirmation(run, MODEL, [HF]).witness is Witness.UNKNOWN


@pytest.mark.parametrize(
    ("model", "reference", "words"),
    [
        (MODEL, {SITE: LOGITS}, "LlamaForCausalLM with vllm 0.32.0"),
        (MODEL, {SITE: LOGITS * (1 + 1e-6)}, "an earlier run"),
        (MODEL, {SITE: LOGITS + 0.01 * torch.arange(300)}, ""),  # transformers has changed
        (MODEL, {}, ""),
        (Model("other", "llama", ()), {SITE: LOGITS}, ""),
        (Model("m", "qwen2", ()), {SITE: LOGITS}, ""),
    ],
)
def test_the_very_reference_of_an_earlier_run_is_remembered(model, reference, words):
    found = find_earlier(model, reference)
    assert bool(found) is bool(words) and words in found


def test_a_damaged_file_is_said_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConformanceError, match=r"broken\.json"):
        ledger(path)


def test_hf_runs_the_code_that_the_reference_is(run: RunFolder) -> None:
    assert "transformers' own code" in explain_trust(run, MODEL, [HF], HF)
    engine(run, ONE, 0.5, "TransformersForCausalLM")
    assert "transformers' own code" in explain_trust(run, MODEL, [ONE], ONE)


def test_another_column_of_the_engine_stands_behind_the_reference(run, own_ledger):
    own_ledger.write_text(to_json(Ledger(())), encoding="utf-8")
    ledger.cache_clear()
    engine(run, ONE, 1e-7)
    engine(run, TWO, 0.5)
    assert explain_trust(run, MODEL, [ONE, TWO], TWO).startswith("vllm-pp1 stands behind")
    assert explain_trust(run, MODEL, [TWO], TWO) == ""  # two definitions, and no third


def test_without_another_column_the_earlier_run_does(run: RunFolder) -> None:
    ledger.cache_clear()
    engine(run, TWO, 0.5)
    assert "an earlier run confirmed" in explain_trust(run, MODEL, [TWO], TWO)


def test_the_file_of_the_repository_names_models_that_there_are() -> None:
    known = {model.id: model for model in manifest.load(ROOT / "models.yaml").models}
    entries = ledger(ledgers.FILE)
    assert {"llama", "gpt2"} <= entries.keys() <= known.keys()
    for name, entry in entries.items():
        assert entry.architecture == known[name].architecture
        assert entry.distance <= 100 * max(entry.floor, 1e-8) and entry.truth

"""Who stands behind a model's reference, from stored observations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.judging_runs.witness import find_confirmation
from conformance.planning.jobs import REFERENCE
from conformance.records import (
    Backend,
    Column,
    Group,
    Model,
    Outcome,
    Precision,
    Status,
    Witness,
)
from conformance.store import RunFolder, gathered_in

MODEL = Model("m", "llama", ())
HF, VLLM = Column(Backend("hf", "hf")), Column(Backend("vllm-pp1", "vllm"))
FLOAT32 = gathered_in(VLLM.id, Precision.FLOAT32)
CASE = "without_nnsight.all"
LOGITS = torch.linspace(-9, 0, 50)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run whose reference differs from itself by one part in a million in another way."""
    folder = RunFolder(tmp_path)
    reference = {"truth|p0/s0/logits": LOGITS, "float32_sdpa|p0/s0/logits": LOGITS * (1 + 1e-6)}
    folder.write_cell(MODEL.id, REFERENCE.id, CASE, Outcome(Status.OK), reference)
    return folder


def engine(run: RunFolder, definition: str, off: float, status: Status = Status.OK) -> None:
    group = Group(MODEL.id, VLLM.id, Precision.FLOAT32, status, "its own words")
    identity = {"model": definition}
    run.group_folder(MODEL.id, FLOAT32).write_group(
        Group(**{name: getattr(group, name) for name in group.__slots__} | {"identity": identity})
    )
    values = {"p0/s0/logits": LOGITS * (1 + off)}
    run.write_cell(MODEL.id, FLOAT32, CASE, Outcome(Status.OK), values)


@pytest.mark.parametrize(("off", "witness"), [(5e-6, Witness.CONFIRMED), (3e-4, Witness.DISAGREES)])
def test_a_definition_of_its_own_confirms_the_reference_or_disagrees(
    run: RunFolder, off: float, witness: Witness
) -> None:
    engine(run, "LlamaForCausalLM", off)
    found = find_confirmation(run, MODEL, [HF, VLLM])
    assert found.witness is witness and "LlamaForCausalLM" in found.words
    assert found.distance is not None and found.floor is not None and found.prompts == 1


def test_transformers_own_code_in_the_engine_is_no_second_witness(run: RunFolder) -> None:
    engine(run, "TransformersForCausalLM", 0.0)
    found = find_confirmation(run, MODEL, [HF, VLLM])
    assert found.witness is Witness.SHARED and found.distance is None


def test_a_refusal_is_said_in_its_words(run: RunFolder) -> None:
    engine(run, "", 0.0, Status.UNSUPPORTED)
    found = find_confirmation(run, MODEL, [VLLM])
    assert found.witness is Witness.UNKNOWN and "its own words" in found.words


def test_the_hf_column_shares_the_references_code_and_is_no_witness(run: RunFolder) -> None:
    assert find_confirmation(run, MODEL, [HF]).witness is Witness.UNKNOWN

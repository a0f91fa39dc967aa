"""What a candidate is compared with, where it took other tokens than the reference does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judge_cell import judge_cell
from conformance.judge.runs.reference_reader import CaseReference, ReferenceReader
from conformance.runner.planning.jobs import FORCED, REFERENCE
from conformance.runner.store import RunFolder
from conformance.spec.records import Case, Group, Outcome, Precision, Status, Thresholds, Verdict

CASE = Case("reading", "all", ("a",))
IDS = ((4, 5),)
#: A near-tie of the ids 1 and 2, of which the reference takes 1, and what comes after either.
NEAR_TIE = torch.tensor([0.0, 8.0, 8.0 - 2.0**-18, 1.0])
AFTER = torch.tensor([0.0, 9.0, 1.0, 2.0])


def generation(tokens: tuple[int, ...], *logits: Tensor) -> dict[str, Tensor]:
    """Ids and logits by step, of one prompt."""
    ids = {f"p0/s{step}/tokens": torch.tensor([token]) for step, token in enumerate(tokens)}
    return ids | {f"p0/s{step}/logits": row.clone() for step, row in enumerate(logits)}


@pytest.mark.parametrize(("larger", "verdict"), [(2, Verdict.MATCH), (1, Verdict.WRONG)])
def test_the_id_that_the_reference_was_held_to_is_the_largest_of_its_own_logits(
    tmp_path: Path, larger: int, verdict: Verdict
) -> None:
    """Along a candidate's tokens the reference has their ids, which say nothing of its choice."""
    run = RunFolder(tmp_path)
    free, along = generation((1, 1), NEAR_TIE, AFTER), generation((2, 1), NEAR_TIE, AFTER)
    held = replace(CASE, forced={"": ((2, 1),)})
    for backend, case, values in ((REFERENCE.id, CASE, free), (FORCED.id, held, along)):
        folder = run.group_folder("toy", backend)
        folder.write_group(Group("toy", backend, identity={"layers": 1, "width": 4}))
        ways = ("truth", "float32_a", "float32_b")
        tensors = {f"{way}|{site}": value for way in ways for site, value in values.items()}
        folder.write_cell(case.key, Outcome(Status.OK, prompt_ids=IDS), tensors)
    own = NEAR_TIE.clone()
    own[larger] += 2.0**-17
    candidate = generation((2, 1), own, AFTER)
    case_reference = ReferenceReader(
        run, "toy", CASE, has_edit=False, precision=Precision.FLOAT32
    ).along(candidate)
    assert isinstance(case_reference, CaseReference), case_reference
    assert not case_reference.lacking
    judgement = judge_cell(
        candidate,
        case_reference.reference,
        has_edit=False,
        equal=(),
        prompt_ids=IDS,
        reference_ids=case_reference.prompt_ids,
        limits=Thresholds().of(Precision.FLOAT32),
    )
    assert judgement.verdict is verdict, judgement.reason

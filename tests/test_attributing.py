"""What an engine generated without nnsight, as evidence on its failed cells."""

from __future__ import annotations

import pytest

from conformance.attributing import attributed, plain_of
from conformance.records import Backend, CellResult, Judged, Side, Verdict

ENGINE = 'File "site-packages/vllm/x.py", line 3'
OURS = 'File "conformance/scenario.py", line 3'
OBSERVED = (Judged("p0/s0/logits", Verdict.MATCH), Judged("p0/s0/tokens", Verdict.EXACT))


def cell(
    verdict: Verdict,
    backend: str = "vllm-pp1",
    *,
    observations: tuple[Judged, ...] = OBSERVED,
    detail: str = "",
) -> CellResult:
    return CellResult(
        id=f"read[m-{backend}-all]",
        model="m",
        architecture="llama",
        backend=backend,
        scenario="read",
        case="all",
        verdict=verdict,
        reason="because",
        seconds=0.0,
        command="",
        observations=observations,
        detail=detail,
    )


@pytest.mark.parametrize(
    ("generated", "agrees"),
    [
        (cell(Verdict.MATCH), True),
        (cell(Verdict.WRONG), False),
        (cell(Verdict.STRUCTURE), False),
        (cell(Verdict.TIMEOUT, observations=()), False),
        (cell(Verdict.ERROR, observations=(), detail=ENGINE), False),
        (cell(Verdict.ERROR, observations=(), detail=OURS), None),
        (cell(Verdict.UNKNOWN, observations=()), None),
        (cell(Verdict.UNSUPPORTED, observations=()), None),
        (cell(Verdict.DRIFT), None),
        (None, None),
    ],
)
def test_what_it_says_of_a_wrong_cell(generated: CellResult | None, agrees: bool | None) -> None:
    found = plain_of(cell(Verdict.WRONG), generated)
    assert (found.agrees if found else None) is agrees


def test_an_engine_that_drifts_by_itself_explains_drift() -> None:
    found = plain_of(cell(Verdict.DRIFT), cell(Verdict.DRIFT))
    assert found is not None
    assert not found.agrees


def test_only_failed_cells_are_blamed_and_only_for_them_generations_are_judged() -> None:
    backends = [Backend("hf", "hf"), Backend("vllm-pp1", "vllm")]
    cells = {one.id: one for one in (cell(Verdict.MATCH, "hf"), cell(Verdict.WRONG))}
    asked: list[str] = []

    def generated(one: CellResult) -> CellResult | None:
        asked.append(one.backend)
        return cell(Verdict.WRONG)

    found = attributed(cells, backends, lambda _: None, generated)
    assert asked == ["vllm-pp1"]
    assert found["read[m-hf-all]"].attribution is None
    blamed = found["read[m-vllm-pp1-all]"].attribution
    assert blamed is not None
    assert blamed.side is Side.ENGINE
    assert "its own 1 token " in blamed.evidence

"""What an engine generated without nnsight, as evidence on its failed cells."""

from __future__ import annotations

import pytest

from conformance.judge.runs.attributing import attribute_failures, plain_of
from conformance.spec.builtin.engine_alone import COMPUTED, GENERATED
from conformance.spec.records import (
    Backend,
    CellResult,
    Column,
    Frame,
    Judged,
    Owner,
    Side,
    Verdict,
)
from tests import known_runs

ENGINE = (Frame(Owner.ENGINE, "vllm/x.py", 3),)
OURS = (Frame(Owner.HARNESS, "conformance/spec/scenario.py", 3),)
OBSERVED = (Judged("p0/s0/logits", Verdict.MATCH), Judged("p0/s0/tokens", Verdict.EXACT))


def cell(
    verdict: Verdict,
    backend: str = "vllm-pp1",
    *,
    observations: tuple[Judged, ...] = OBSERVED,
    frames: tuple[Frame, ...] = (),
) -> CellResult:
    more = {"verdict": verdict, "observations": observations, "frames": frames}
    return known_runs.cell("m", backend, "read", "all", **more)


@pytest.mark.parametrize(
    ("generated", "agrees"),
    [
        (cell(Verdict.MATCH), True),
        (cell(Verdict.WRONG), False),
        (cell(Verdict.STRUCTURE), False),
        (cell(Verdict.TIMEOUT, observations=()), False),
        (cell(Verdict.ERROR, observations=(), frames=ENGINE), False),
        (cell(Verdict.ERROR, observations=(), frames=OURS), None),
        (cell(Verdict.UNKNOWN, observations=()), None),
        (cell(Verdict.UNSUPPORTED, observations=()), None),
        (cell(Verdict.DRIFT), None),
        (None, None),
    ],
)
def test_what_it_says_of_a_wrong_cell(generated: CellResult | None, agrees: bool | None) -> None:
    alone = {GENERATED.name: generated} if generated else {}
    found = plain_of(alone)
    assert (found.agrees if found else None) is agrees


STREAMS = (Judged("p0/s0/stream.0", Verdict.MATCH), Judged("p0/s0/stream.1", Verdict.MATCH))


def test_its_own_streams_are_evidence_beside_what_it_generates() -> None:
    right = {
        GENERATED.name: cell(Verdict.MATCH),
        COMPUTED.name: cell(Verdict.MATCH, observations=STREAMS),
    }
    found = plain_of(right)
    assert found is not None and found.agrees and found.streams
    assert "after 2 layers" in found.evidence and "1 token " in found.evidence

    wrong = right | {COMPUTED.name: cell(Verdict.WRONG, observations=STREAMS)}
    found = plain_of(wrong)
    assert found is not None and not found.agrees and "hooks" in found.evidence

    no_layout = right | {COMPUTED.name: cell(Verdict.STRUCTURE, observations=())}
    found = plain_of(no_layout)
    assert found is not None and found.agrees and not found.streams


def test_only_failed_cells_are_blamed_and_only_for_them_generations_are_judged() -> None:
    backends = [Column(Backend("hf", "hf")), Column(Backend("vllm-pp1", "vllm"))]
    cells = {one.id: one for one in (cell(Verdict.MATCH, "hf"), cell(Verdict.WRONG))}
    asked: list[str] = []

    def alone(one: CellResult) -> dict[str, CellResult]:
        asked.append(one.backend)
        return {GENERATED.name: cell(Verdict.WRONG)}

    found = attribute_failures(cells, backends, alone, lambda _: "confirmed")
    assert asked == ["vllm-pp1"]
    assert found["read[m-hf-all]"].attribution is None
    blamed = found["read[m-vllm-pp1-all]"].attribution
    assert blamed is not None
    assert blamed.side is Side.ENGINE
    assert "its own 1 token " in blamed.evidence and "confirmed" in blamed.evidence


def test_a_library_s_cell_is_neither_nnsight_s_nor_an_engine_s() -> None:
    edited = (
        Judged("edited/p0/s0/logits", Verdict.WRONG),
        Judged("clean/p0/s0/logits", Verdict.MATCH),
    )
    failed = cell(Verdict.DROPPED, "lens", observations=edited)
    columns = [Column(Backend("lens", "transformer-lens"))]
    [result] = attribute_failures({failed.id: failed}, columns, lambda _: {}).values()
    assert result.attribution is not None and result.attribution.side is Side.UNDECIDED
    assert "the library" in result.attribution.evidence
    vacuous = cell(Verdict.VACUOUS, "lens")
    [result] = attribute_failures({vacuous.id: vacuous}, columns, lambda _: {}).values()
    assert result.attribution is not None and result.attribution.side is Side.HARNESS

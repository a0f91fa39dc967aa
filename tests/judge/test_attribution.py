"""Who is to blame, from clean and edited runs, one and two stages, and the plain engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.judge.attribution import Plain, attribute
from conformance.records import Attribution, CellResult, Frame, Judged, Owner, Side, Verdict
from tests import known_runs

RIGHT = Plain(agrees=True, evidence="8 of 8 greedy tokens")
WRONG = Plain(agrees=False, evidence="3 of 8 greedy tokens", confirmed="vllm-pp1 confirms it")
DIFFERS = replace(WRONG, confirmed="")


def cell(
    verdict: Verdict = Verdict.WRONG,
    *,
    backend: str = "vllm-pp1",
    scenario: str = "steering",
    off: tuple[str, ...] = (),
    right: tuple[str, ...] = (),
    frames: tuple[Frame, ...] = (),
    harness: bool = False,
) -> CellResult:
    observations = tuple(
        Judged(site, kind)
        for sites, kind in ((off, Verdict.WRONG), (right, Verdict.MATCH))
        for site in sites
    )
    more = {"observations": observations, "frames": frames, "harness": harness}
    return known_runs.cell("m", backend, scenario, "all", verdict=verdict, **more)


def found(failed: CellResult, *others: CellResult, **facts: object) -> Attribution:
    result = attribute(failed, others, **facts)  # type: ignore[arg-type]
    assert result is not None
    return result


@pytest.mark.parametrize("verdict", [Verdict.EXACT, Verdict.MATCH, Verdict.UNSUPPORTED])
def test_nobody_is_blamed_for_what_did_not_fail(verdict: Verdict) -> None:
    assert attribute(cell(verdict), []) is None


def test_the_harness_is_blamed_for_its_own() -> None:
    assert found(cell(Verdict.ERROR, harness=True)).side is Side.HARNESS
    assert found(cell(Verdict.UNKNOWN)).side is Side.HARNESS
    assert found(cell(Verdict.VACUOUS)).side is Side.HARNESS


def test_what_passes_on_one_stage_only_is_the_pipelines() -> None:
    two = cell(backend="vllm-pp2", off=("p0/s0/stream.3",), right=("p0/s0/logits",))
    one = cell(Verdict.MATCH, backend="vllm-pp1")
    assert found(two, one, one_stage="vllm-pp1").side is Side.PIPELINE
    assert "match on vllm-pp1" in found(two, one, one_stage="vllm-pp1").evidence
    assert found(two, one, one_stage="vllm-pp1", plain=RIGHT).side is Side.PIPELINE
    assert found(two, one, one_stage="vllm-pp1", plain=WRONG).side is Side.ENGINE
    both = cell(Verdict.WRONG, backend="vllm-pp1")
    assert found(two, both, one_stage="vllm-pp1").side is Side.NNSIGHT
    other = cell(Verdict.MATCH, backend="vllm-pp1", scenario="ablation")
    assert found(two, other, one_stage="vllm-pp1").side is Side.NNSIGHT


def test_a_crash_on_two_stages_only_is_the_pipelines() -> None:
    two, one = cell(Verdict.TIMEOUT, backend="vllm-pp2"), cell(Verdict.EXACT)
    assert found(two, one, one_stage="vllm-pp1").side is Side.PIPELINE


def test_an_engine_that_is_wrong_by_itself_is_to_blame() -> None:
    off = cell(off=("clean/p0/s0/logits", "edited/p0/s0/logits"))
    assert found(off, plain=WRONG).side is Side.ENGINE
    assert "3 of 8" in str(found(off, plain=WRONG))
    assert "vllm-pp1 confirms it" in str(found(off, plain=WRONG))


def test_where_definitions_differ_and_nobody_stands_behind_one_nobody_is_blamed() -> None:
    """The reference and the HF column share transformers' code: it may be that which is wrong."""
    off = cell(off=("clean/p0/s0/logits", "edited/p0/s0/logits"))
    said = found(off, plain=DIFFERS)
    assert said.side is Side.UNDECIDED and "definitions differ" in said.evidence


def test_a_wrong_edited_run_beside_a_right_clean_one_is_nnsights_write() -> None:
    off = cell(
        off=("edited/p0/s0/stream.3", "edited/p0/s0/logits"),
        right=("clean/p0/s0/stream.3", "clean/p0/s0/logits"),
    )
    for plain in (None, RIGHT):
        blamed = found(off, plain=plain)
        assert blamed.side is Side.NNSIGHT and "write" in blamed.evidence


def test_a_wrong_read_before_right_logits_is_nnsights_read() -> None:
    off = cell(scenario="read_all", off=("p0/s0/stream.3",), right=("p0/s0/logits",))
    assert found(off).side is Side.NNSIGHT and "read" in found(off).evidence


def rows(layer: int, *ratios: float) -> Judged:
    verdict = Verdict.WRONG if max(ratios) > 3 else Verdict.MATCH
    return Judged(f"p0/s0/stream.{layer}", verdict, ratios=ratios)


LOGITS = Judged("p0/s0/logits", Verdict.MATCH)


def read(*observations: Judged) -> CellResult:
    return replace(cell(scenario="read_all"), observations=observations)


def test_a_row_that_stays_off_to_the_last_layer_may_have_been_computed_so() -> None:
    """The last token sees it through attention only, and may be right all the same."""
    off = read(rows(0, 1, 1, 1), rows(1, 1, 9, 1), rows(2, 1, 9, 1), LOGITS)
    assert found(off).side is Side.UNDECIDED
    assert found(off, plain=RIGHT).side is Side.UNDECIDED
    # What plain hooks see decides it.
    assert found(off, plain=replace(RIGHT, streams=True)).side is Side.NNSIGHT
    assert found(off, plain=WRONG).side is Side.ENGINE


@pytest.mark.parametrize(
    "streams",
    [
        (rows(0, 1, 1), rows(1, 9, 1), rows(2, 1, 1)),  # right again: it was only read so
        (rows(0, 1, 1), rows(1, 1, 1), rows(2, 9, 1)),  # the last layer alone
        (rows(0, 1, 1), rows(1, 9, 9), rows(2, 9, 9)),  # the last token too, but logits are right
    ],
)
def test_a_read_that_the_rest_of_the_run_contradicts_is_nnsights(
    streams: tuple[Judged, ...],
) -> None:
    assert found(read(*streams, LOGITS)).side is Side.NNSIGHT


def test_a_module_that_the_engine_lacks_is_the_engines_change() -> None:
    words = "AttributeError: 'Envoy' object (nor its module) has attribute 'layers'"
    off = replace(cell(Verdict.ERROR, frames=raised(Owner.NNSIGHT)), reason=words)
    assert found(off).side is Side.ENGINE and "'layers'" in found(off).evidence


def test_hooks_that_the_engine_went_around_are_the_engines_though_the_harness_says_so() -> None:
    words = "HooksSkippedError: in 1 of 1 steps with a block no hook of the layers fired"
    own = replace(cell(Verdict.ERROR, frames=raised(Owner.HARNESS)), reason=words)
    assert found(own).side is Side.ENGINE
    assert found(replace(own, reason="KeyError: 'steps'")).side is Side.HARNESS


def test_a_worker_that_just_ended_is_the_engines_where_it_does_so_without_nnsight() -> None:
    assert found(cell(Verdict.MISSING), plain=WRONG).side is Side.ENGINE
    assert found(cell(Verdict.MISSING), plain=RIGHT).side is Side.NNSIGHT
    assert found(cell(Verdict.MISSING)).side is Side.UNDECIDED


def test_wrong_logits_are_undecided_without_the_plain_engine() -> None:
    off = cell(scenario="clean", off=("p0/s0/logits",))
    assert found(off).side is Side.UNDECIDED
    assert found(off, off).side is Side.UNDECIDED
    assert found(off, plain=RIGHT).side is Side.NNSIGHT


def test_wrong_logits_are_nnsights_when_they_are_right_with_nothing_else_read() -> None:
    off = cell(scenario="read_all", off=("p0/s0/stream.0", "p0/s0/logits"))
    assert found(off, cell(Verdict.MATCH, scenario="clean")).side is Side.NNSIGHT
    assert found(off, cell(Verdict.WRONG, scenario="clean")).side is Side.UNDECIDED
    foreign = cell(Verdict.MATCH, scenario="clean", backend="hf")
    assert found(off, foreign).side is Side.UNDECIDED


def raised(*owners: Owner | tuple[Owner, str]) -> tuple[Frame, ...]:
    """Calls of these owners, the innermost last."""
    pairs = (each if isinstance(each, tuple) else (each, f"{each}/x.py") for each in owners)
    return tuple(Frame(owner, file, line) for line, (owner, file) in enumerate(pairs, 7))


@pytest.mark.parametrize(
    ("last", "side"),
    [
        (Owner.NNSIGHT, Side.NNSIGHT),
        (Owner.ENGINE, Side.ENGINE),
        (Owner.PIPELINE, Side.PIPELINE),
        (Owner.HARNESS, Side.HARNESS),
        (Owner.SCENARIO, Side.HARNESS),
        (Owner.SELFTEST, Side.UNDECIDED),
    ],
)
def test_an_error_belongs_to_the_innermost_known_frame(last: Owner, side: Side) -> None:
    blamed = found(cell(Verdict.ERROR, frames=raised(Owner.HARNESS, last)))
    assert blamed.side is side
    assert side is Side.UNDECIDED or "line 8" in blamed.evidence


LOADER = (Owner.ENGINE, "vllm/model_executor/model_loader/base_loader.py")
TRACED = (Owner.ENGINE, "vllm/tracing/otel.py")
WORKER = (Owner.ENGINE, "vllm/v1/worker/gpu_model_runner.py")
ENTRANCE = (Owner.ENGINE, "vllm/entrypoints/llm.py")
ADMITTED = (Owner.ENGINE, "vllm/v1/engine/input_processor.py")
WISHES = (Owner.ENGINE, "vllm/sampling_params.py")
KERNEL = (Owner.ENGINE, "vllm/v1/attention/backends/cpu_attn.py")
AUTO = (Owner.ENGINE, "transformers/models/auto/auto_factory.py")
GENERATION = (Owner.ENGINE, "transformers/generation/utils.py")
MODEL = (Owner.ENGINE, "transformers/models/llama/modeling_llama.py")
PRETRAINED = (Owner.ENGINE, "transformers/modeling_utils.py")
MISFIT = (Owner.ENGINE, "transformers/utils/loading_report.py")


@pytest.mark.parametrize(
    ("frames", "plain", "side"),
    [
        # nnsight's client builds a model by what no user of the engine calls.
        ((Owner.NNSIGHT, LOADER), None, Side.NNSIGHT),
        ((Owner.NNSIGHT, ENTRANCE, LOADER), None, Side.ENGINE),
        ((Owner.NNSIGHT, TRACED, WORKER, LOADER), None, Side.ENGINE),
        ((Owner.HARNESS, ENTRANCE, LOADER), None, Side.ENGINE),
        # Through the front door, and the engine does the same rightly by itself.
        ((Owner.NNSIGHT, ENTRANCE), RIGHT, Side.NNSIGHT),
        ((Owner.NNSIGHT, ENTRANCE), WRONG, Side.ENGINE),
        ((Owner.NNSIGHT, LOADER), WRONG, Side.ENGINE),
        # It refuses what nnsight asks for: nobody says whether rightly, but the engine alone.
        ((Owner.NNSIGHT, ENTRANCE, ADMITTED), None, Side.UNDECIDED),
        ((Owner.NNSIGHT, ENTRANCE, ADMITTED), RIGHT, Side.NNSIGHT),
        ((Owner.SCENARIO, Owner.NNSIGHT, WISHES), None, Side.UNDECIDED),
        ((Owner.NNSIGHT, AUTO), None, Side.UNDECIDED),
        ((Owner.NNSIGHT, GENERATION), None, Side.UNDECIDED),
        # It was at work.
        ((Owner.NNSIGHT, ENTRANCE, ADMITTED, WORKER, KERNEL), None, Side.ENGINE),
        ((Owner.NNSIGHT, GENERATION, MODEL), None, Side.ENGINE),
        ((Owner.NNSIGHT, AUTO, PRETRAINED, MISFIT), None, Side.ENGINE),
        # The harness's own mixins in the engine's runner pass a step on.
        ((Owner.NNSIGHT, ENTRANCE, Owner.HARNESS, WORKER), RIGHT, Side.NNSIGHT),
        ((Owner.NNSIGHT, ENTRANCE, Owner.HARNESS, Owner.HARNESS, WORKER), RIGHT, Side.NNSIGHT),
        ((Owner.NNSIGHT, ENTRANCE, Owner.HARNESS, WORKER), WRONG, Side.ENGINE),
        ((Owner.NNSIGHT, ENTRANCE, Owner.HARNESS, WORKER), None, Side.ENGINE),
        ((Owner.NNSIGHT, Owner.HARNESS, WORKER), RIGHT, Side.ENGINE),
        # What the injected hook only passed on.
        ((Owner.SELFTEST, Owner.NNSIGHT, Owner.SELFTEST, LOADER), None, Side.NNSIGHT),
    ],
)
def test_inside_the_engine_it_is_the_one_who_called_it(
    frames: tuple[Owner | tuple[Owner, str], ...], plain: Plain | None, side: Side
) -> None:
    blamed = found(cell(Verdict.ERROR, frames=raised(*frames)), plain=plain)
    assert blamed.side is side


@pytest.mark.parametrize(
    ("plain", "side"), [(RIGHT, Side.NNSIGHT), (WRONG, Side.ENGINE), (None, Side.UNDECIDED)]
)
def test_a_layer_of_another_form_is_blamed_on_who_handed_it_over(
    plain: Plain | None, side: Side
) -> None:
    words = "the layer gave (tensor[5, 64]), not two summands"
    failed = replace(
        cell(Verdict.ERROR, frames=raised(Owner.NNSIGHT, Owner.SCENARIO, Owner.HARNESS)),
        reason=f"RuntimeError: UnreadableLayerError: {words}\n\nIntervention traceback:",
    )
    blamed = found(failed, plain=plain)
    assert blamed.side is side
    assert blamed.evidence.startswith(words)


def test_an_error_that_all_engines_share_is_undecided_but_for_one_of_the_trace() -> None:
    engines = {"hf": "hf", "vllm-pp1": "vllm", "vllm-pp2": "vllm"}

    def columns(*names: str, frames: tuple[Frame, ...]) -> list[CellResult]:
        words = {"reason": "KeyError: 'x'"}
        cells = [cell(Verdict.ERROR, backend=name, frames=frames) for name in names]
        return [replace(each, **words) for each in cells]

    for owner, side in ((Owner.NNSIGHT, Side.UNDECIDED), (Owner.SCENARIO, Side.HARNESS)):
        both = columns("hf", "vllm-pp1", frames=raised(Owner.NNSIGHT, owner))
        assert found(both[1], *both, engines=engines).side is side
    stages = columns("vllm-pp1", "vllm-pp2", frames=raised(Owner.NNSIGHT))
    assert found(stages[0], *stages, engines=engines).side is Side.NNSIGHT
    both = columns("hf", "vllm-pp1", frames=raised(Owner.NNSIGHT))
    both[0] = replace(both[0], reason="RuntimeError: another thing")
    assert found(both[1], *both, engines=engines).side is Side.NNSIGHT


def test_an_end_without_a_traceback() -> None:
    assert found(cell(Verdict.CRASH)).side is Side.UNDECIDED
    assert found(cell(Verdict.CRASH), plain=RIGHT).side is Side.NNSIGHT
    assert found(cell(Verdict.TIMEOUT), plain=WRONG).side is Side.ENGINE


def test_a_pipelined_cell_that_was_not_run_on_one_stage_is_not_decided() -> None:
    failed = cell(backend="vllm-pp2", off=("p0/s0/stream.1",), right=("p0/s0/logits",))
    assert found(failed, stages=2, plain=RIGHT).side is Side.UNDECIDED
    refused = cell(Verdict.UNSUPPORTED)
    said = found(failed, refused, stages=2, one_stage="vllm-pp1", plain=RIGHT)
    assert said.side is Side.UNDECIDED
    assert "nothing distinguishes nnsight from the pipeline" in said.evidence


def test_what_fails_on_one_stage_as_well_is_not_the_pipelines() -> None:
    parts = {"off": ("p0/s0/stream.1",), "right": ("p0/s0/logits",)}
    failed, single = cell(backend="vllm-pp2", **parts), cell(**parts)  # type: ignore[arg-type]
    said = found(failed, single, stages=2, one_stage="vllm-pp1", plain=RIGHT)
    assert said.side is Side.NNSIGHT
    assert "on vllm-pp1 the cell is wrong as well" in said.evidence


def test_what_merely_drifts_on_one_stage_is_the_pipelines_where_it_is_dropped() -> None:
    failed, single = cell(Verdict.DROPPED, backend="vllm-pp2"), cell(Verdict.DRIFT)
    assert found(failed, single, stages=2, one_stage="vllm-pp1").side is Side.PIPELINE


def test_drift_is_no_failure_and_blamed_on_nobody() -> None:
    drifting = cell(Verdict.DRIFT, off=("p0/s0/stream.1",), right=("p0/s0/logits",))
    assert attribute(drifting, (), plain=WRONG) is None


def test_a_dropped_write_with_a_right_clean_run_is_not_the_engines() -> None:
    failed = cell(
        Verdict.DROPPED,
        off=("edited/p0/s0/stream.1",),
        right=("clean/p0/s0/stream.1", "clean/p0/s0/logits"),
    )
    assert found(failed, plain=WRONG).side is Side.NNSIGHT


ALIKE = {"off": ("p0/s0/stream.1",), "right": ("p0/s0/logits",)}


def test_what_fails_alike_on_every_engine_is_undecided() -> None:
    """It may be the scenario, its reference, or what of nnsight all engines run."""
    hf, vllm = (cell(backend=name, **ALIKE) for name in ("hf", "vllm-pp1"))  # type: ignore[arg-type]
    said = found(vllm, hf, vllm, plain=RIGHT)
    assert said.side is Side.UNDECIDED and "wrong alike on hf, vllm-pp1:" in said.evidence
    matches = [
        cell(Verdict.MATCH, backend=name, scenario="read", right=("p0/s0/stream.1",))
        for name in ("hf", "vllm-pp1")
    ]
    said = found(vllm, hf, vllm, *matches, plain=RIGHT)
    assert said.side is Side.UNDECIDED
    assert "wrong alike on hf, vllm-pp1, where read does the same rightly" in said.evidence


def test_what_fails_on_one_engine_alone_is_decided() -> None:
    hf, vllm = (cell(backend=name, **ALIKE) for name in ("hf", "vllm-pp1"))  # type: ignore[arg-type]
    passes = replace(hf, verdict=Verdict.MATCH)
    dropped = replace(hf, verdict=Verdict.DROPPED)
    two = replace(vllm, backend="vllm-pp2")
    same = {"vllm-pp1": "vllm", "vllm-pp2": "vllm"}
    assert found(vllm, vllm, plain=RIGHT).side is Side.NNSIGHT
    assert found(vllm, passes, vllm, plain=RIGHT).side is Side.NNSIGHT
    assert found(vllm, dropped, vllm, plain=RIGHT).side is Side.NNSIGHT
    assert found(vllm, two, vllm, plain=RIGHT, engines=same).side is Side.NNSIGHT


@pytest.mark.parametrize(
    ("off", "side"),
    [
        (("p0/s0/extracted.1",), Side.ENGINE),
        (("p0/s0/stream.1",), Side.NNSIGHT),
        ((), Side.UNDECIDED),  # both within the noise, and not the same bits
    ],
)
def test_what_the_engine_hands_out_itself_tells_its_faults_from_those_of_a_read(
    off: tuple[str, ...], side: Side
) -> None:
    every = {"p0/s0/stream.1", "p0/s0/extracted.1", "p0/s0/logits"}
    failed = cell(scenario="extract", off=off, right=tuple(every - set(off)))
    for plain in (None, RIGHT):
        assert found(failed, plain=plain).side is side
    assert found(failed, plain=WRONG).side is Side.ENGINE
    both = cell(scenario="extract", off=("p0/s0/stream.1", "p0/s0/extracted.1"))
    assert found(both, plain=WRONG).side is Side.ENGINE
    assert "handed out" not in found(both).evidence


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict.CRASH, "the worker ended with exit status 7; its block may have ended it"),
        (Verdict.MISSING, "the worker ended, without an error; its block may have ended it"),
        (Verdict.TIMEOUT, "no outcome within 8 s; process 7 was stopped by a signal"),
    ],
)
def test_nobody_is_blamed_for_what_the_block_may_have_done(verdict: Verdict, reason: str) -> None:
    ended = replace(cell(verdict), reason=reason)
    assert found(ended, plain=RIGHT).side is Side.UNDECIDED


@pytest.mark.parametrize(
    "reason",
    [
        "the worker was ended by SIGKILL (out of memory?) while running c",
        "a process of the engine ended while loading: process 7 was ended from outside by SIGKILL",
    ],
)
def test_nobody_is_blamed_for_a_kill(reason: str) -> None:
    killed = replace(cell(Verdict.CRASH, frames=raised(Owner.ENGINE)), reason=reason)
    assert found(killed).side is Side.UNDECIDED

"""Who is to blame, from clean and edited runs, one and two stages, and the plain engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.judge.cell.attribution import Plain, attribute
from conformance.spec.records import Attribution, CellResult, Frame, Judged, Owner, Side, Verdict
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


def raised(*owners: Owner | tuple[Owner, str]) -> tuple[Frame, ...]:
    """Calls of these owners, the innermost last."""
    pairs = (each if isinstance(each, tuple) else (each, f"{each}/x.py") for each in owners)
    return tuple(Frame(owner, file, line) for line, (owner, file) in enumerate(pairs, 7))


def rows(layer: int, *ratios: float) -> Judged:
    verdict = Verdict.WRONG if max(ratios) > 3 else Verdict.MATCH
    return Judged(f"p0/s0/stream.{layer}", verdict, ratios=ratios)


def read(*observations: Judged) -> CellResult:
    logits = Judged("p0/s0/logits", Verdict.MATCH)
    return replace(cell(scenario="read_all"), observations=(*observations, logits))


def said(verdict: Verdict, reason: str, *owners: Owner) -> CellResult:
    return replace(cell(verdict, frames=raised(*owners)), reason=reason)


OFF, READ = ("p0/s0/stream.3",), {"off": ("p0/s0/stream.1",), "right": ("p0/s0/logits",)}
LOGITS_OFF = cell(off=("clean/p0/s0/logits", "edited/p0/s0/logits"))
ALONE_OFF, ALL_OFF = (
    cell(scenario=scenario, off=off)
    for scenario, off in (("clean", ("p0/s0/logits",)), ("read_all", (*OFF, "p0/s0/logits")))
)
WRITE = cell(
    off=("edited/p0/s0/stream.3", "edited/p0/s0/logits"),
    right=("clean/p0/s0/stream.3", "clean/p0/s0/logits"),
)
TWO = cell(backend="vllm-pp2", off=OFF, right=("p0/s0/logits",))
HF, VLLM = (cell(backend=name, **READ) for name in ("hf", "vllm-pp1"))  # type: ignore[arg-type]
STAYS = read(rows(0, 1, 1, 1), rows(1, 1, 9, 1), rows(2, 1, 9, 1))
ONE = {"one_stage": "vllm-pp1"}
STAGES = {**ONE, "stages": 2}
ENGINES = {"vllm-pp1": "vllm", "vllm-pp2": "vllm"}
MISSING = cell(Verdict.MISSING)
HANDED = said(
    Verdict.ERROR,
    "RuntimeError: UnreadableLayerError: it gave (tensor[5, 64])\n\nIntervention traceback:",
    *(Owner.NNSIGHT, Owner.SCENARIO, Owner.HARNESS),
)
SKIPPED = said(
    Verdict.ERROR, "HooksSkippedError: in 1 of 1 steps no hook of the layers fired", Owner.HARNESS
)
UNREAD = said(Verdict.STRUCTURE, "no reading of a layer output (tensor[5, 64]) is the stream")
NO_MODULE = "AttributeError: 'Envoy' object (nor its module) has attribute 'layers'"
BLOCK = "the worker ended, without an error; its block may have ended it"
KILLED = "the worker was ended by SIGKILL (out of memory?) while running c"
KILLED_LOADING = "while loading: process 7 was ended from outside by SIGKILL"
STOPPED = "no outcome within 8 s; process 7 was stopped by a signal"


def passing(verdict: Verdict = Verdict.MATCH, **where: str) -> CellResult:
    return cell(verdict, **where)  # type: ignore[arg-type]


#: Of a failed cell: other cells of the model, further facts, who is blamed, and with which words.
BLAMED: dict[str, tuple[CellResult, list[CellResult], dict[str, object], Side, str]] = {
    "harness": (cell(Verdict.ERROR, harness=True), [], {}, Side.HARNESS, ""),
    "unknown": (cell(Verdict.UNKNOWN), [], {}, Side.HARNESS, ""),
    "vacuous": (cell(Verdict.VACUOUS), [], {}, Side.HARNESS, ""),
    # What passes on one stage only is the pipeline's.
    "one stage": (TWO, [passing()], ONE, Side.PIPELINE, "match on vllm-pp1"),
    "one stage, plain right": (TWO, [passing()], {**ONE, "plain": RIGHT}, Side.PIPELINE, ""),
    "one stage, plain wrong": (TWO, [passing()], {**ONE, "plain": WRONG}, Side.ENGINE, ""),
    "both stages": (TWO, [cell()], ONE, Side.NNSIGHT, ""),
    "another case": (TWO, [passing(scenario="ablation")], ONE, Side.NNSIGHT, ""),
    "crash on two": (
        cell(Verdict.TIMEOUT, backend="vllm-pp2"), [cell(Verdict.EXACT)], ONE, Side.PIPELINE, "",
    ),
    "not run on one": (
        TWO, [cell(Verdict.UNSUPPORTED)], {**STAGES, "plain": RIGHT}, Side.UNDECIDED,
        "nothing distinguishes nnsight from the pipeline",
    ),
    "no column of one": (TWO, [], {"stages": 2, "plain": RIGHT}, Side.UNDECIDED, ""),
    "fails on one as well": (
        replace(VLLM, backend="vllm-pp2"), [VLLM], {**STAGES, "plain": RIGHT}, Side.NNSIGHT,
        "on vllm-pp1 the cell is wrong as well",
    ),
    "drifts on one": (
        cell(Verdict.DROPPED, backend="vllm-pp2"), [cell(Verdict.DRIFT)], STAGES, Side.PIPELINE, "",
    ),
    # An engine that is wrong by itself, if somebody confirms the reference's definition.
    "plain wrong": (LOGITS_OFF, [], {"plain": WRONG}, Side.ENGINE, "vllm-pp1 confirms it"),
    "definitions": (LOGITS_OFF, [], {"plain": DIFFERS}, Side.UNDECIDED, "definitions differ"),
    # A wrong edited run beside a right clean one is nnsight's write.
    "write": (WRITE, [], {}, Side.NNSIGHT, "write"),
    "write, plain right": (WRITE, [], {"plain": RIGHT}, Side.NNSIGHT, "write"),
    "dropped": (
        replace(WRITE, verdict=Verdict.DROPPED), [], {"plain": WRONG}, Side.NNSIGHT, "write",
    ),
    # A wrong read before right logits is nnsight's read, unless it may have been computed so.
    "read": (cell(off=OFF, right=("p0/s0/logits",)), [], {}, Side.NNSIGHT, "read"),
    "stays off": (STAYS, [], {}, Side.UNDECIDED, ""),
    "stays off, plain right": (STAYS, [], {"plain": RIGHT}, Side.UNDECIDED, ""),
    "stays off, hooks right": (
        STAYS, [], {"plain": replace(RIGHT, streams=True)}, Side.NNSIGHT, "",
    ),
    "stays off, plain wrong": (STAYS, [], {"plain": WRONG}, Side.ENGINE, ""),
    "right again": (read(rows(0, 1, 1), rows(1, 9, 1), rows(2, 1, 1)), [], {}, Side.NNSIGHT, ""),
    "last alone": (read(rows(0, 1, 1), rows(1, 1, 1), rows(2, 9, 1)), [], {}, Side.NNSIGHT, ""),
    "last token": (read(rows(0, 1, 1), rows(1, 9, 9), rows(2, 9, 9)), [], {}, Side.NNSIGHT, ""),
    # Wrong logits are nnsight's if they are right with nothing else read.
    "logits": (ALONE_OFF, [ALONE_OFF], {}, Side.UNDECIDED, ""),
    "logits, plain right": (ALONE_OFF, [], {"plain": RIGHT}, Side.NNSIGHT, ""),
    "clean passes": (ALL_OFF, [passing(scenario="clean")], {}, Side.NNSIGHT, ""),
    "clean fails": (ALL_OFF, [cell(scenario="clean")], {}, Side.UNDECIDED, ""),
    "clean on hf": (ALL_OFF, [passing(scenario="clean", backend="hf")], {}, Side.UNDECIDED, ""),
    # Errors, and ends without one.
    "no module": (said(Verdict.ERROR, NO_MODULE, Owner.NNSIGHT), [], {}, Side.ENGINE, "'layers'"),
    "hooks skipped": (SKIPPED, [], {}, Side.ENGINE, ""),
    "our error": (replace(SKIPPED, reason="KeyError: 'steps'"), [], {}, Side.HARNESS, ""),
    "ended, plain wrong": (MISSING, [], {"plain": WRONG}, Side.ENGINE, ""),
    "ended, plain right": (MISSING, [], {"plain": RIGHT}, Side.NNSIGHT, ""),
    "ended": (MISSING, [], {}, Side.UNDECIDED, ""),
    "crash": (cell(Verdict.CRASH), [], {}, Side.UNDECIDED, ""),
    "crash, plain right": (cell(Verdict.CRASH), [], {"plain": RIGHT}, Side.NNSIGHT, ""),
    "timeout, plain wrong": (cell(Verdict.TIMEOUT), [], {"plain": WRONG}, Side.ENGINE, ""),
    "handed over, plain right": (HANDED, [], {"plain": RIGHT}, Side.NNSIGHT, "it gave"),
    "handed over, plain wrong": (HANDED, [], {"plain": WRONG}, Side.ENGINE, "it gave"),
    "handed over": (HANDED, [], {}, Side.UNDECIDED, "it gave"),
    # Another stream, or the harness has no reading of the layers that give it.
    "unread": (UNREAD, [], {}, Side.UNDECIDED, "no reading"),
    "unread, plain right": (UNREAD, [], {"plain": RIGHT}, Side.HARNESS, "nnsight it is right"),
    "unread, plain wrong": (UNREAD, [], {"plain": WRONG}, Side.ENGINE, ""),
    "unread on every engine": (
        UNREAD, [UNREAD, replace(UNREAD, backend="hf")], {"plain": RIGHT}, Side.HARNESS, "",
    ),
    "block": (said(Verdict.CRASH, BLOCK), [], {"plain": RIGHT}, Side.UNDECIDED, ""),
    "block, missing": (said(Verdict.MISSING, BLOCK), [], {"plain": RIGHT}, Side.UNDECIDED, ""),
    "stopped": (said(Verdict.TIMEOUT, STOPPED), [], {"plain": RIGHT}, Side.UNDECIDED, ""),
    "killed": (said(Verdict.CRASH, KILLED, Owner.ENGINE), [], {}, Side.UNDECIDED, ""),
    "loading": (said(Verdict.CRASH, KILLED_LOADING, Owner.ENGINE), [], {}, Side.UNDECIDED, ""),
    # What fails alike on every engine may be the scenario, its reference, or nnsight everywhere.
    "alike": (
        VLLM, [HF, VLLM], {"plain": RIGHT}, Side.UNDECIDED, "wrong alike on hf, vllm-pp1:",
    ),
    "alike, and another passes": (
        VLLM,
        [HF, VLLM, *(cell(Verdict.MATCH, backend=name, scenario="read", right=READ["off"])
                     for name in ("hf", "vllm-pp1"))],
        {"plain": RIGHT}, Side.UNDECIDED,
        "wrong alike on hf, vllm-pp1, where read does the same rightly",
    ),
    "alone": (VLLM, [VLLM], {"plain": RIGHT}, Side.NNSIGHT, ""),
    "hf passes": (
        VLLM, [replace(HF, verdict=Verdict.MATCH), VLLM], {"plain": RIGHT}, Side.NNSIGHT, "",
    ),
    "hf otherwise": (
        VLLM, [replace(HF, verdict=Verdict.DROPPED), VLLM], {"plain": RIGHT}, Side.NNSIGHT, "",
    ),
    "one engine twice": (
        VLLM, [replace(VLLM, backend="vllm-pp2"), VLLM], {"plain": RIGHT, "engines": ENGINES},
        Side.NNSIGHT, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "others", "facts", "side", "words"), BLAMED.values(), ids=BLAMED
)
def test_a_failed_cell_is_blamed_on(failed, others, facts, side, words):
    blamed = found(failed, *others, **facts)
    assert blamed.side is side, blamed
    assert words in blamed.evidence


@pytest.mark.parametrize("verdict", [v for v in Verdict if not v.fails])
def test_nobody_is_blamed_for_what_did_not_fail(verdict: Verdict) -> None:
    assert attribute(cell(verdict), [], plain=WRONG) is None


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
def test_inside_the_engine_it_is_the_one_who_called_it(frames, plain, side):
    blamed = found(cell(Verdict.ERROR, frames=raised(*frames)), plain=plain)
    assert blamed.side is side


@pytest.mark.parametrize(
    ("columns", "owner", "same_words", "side"),
    [
        (("vllm-pp1", "hf"), Owner.NNSIGHT, True, Side.UNDECIDED),
        (("vllm-pp1", "hf"), Owner.SCENARIO, True, Side.HARNESS),
        (("vllm-pp1", "vllm-pp2"), Owner.NNSIGHT, True, Side.NNSIGHT),
        (("vllm-pp1", "hf"), Owner.NNSIGHT, False, Side.NNSIGHT),
    ],
)
def test_an_error_that_all_engines_share_is_undecided_but_for_one_of_the_trace(
    columns: tuple[str, str], owner: Owner, same_words: bool, side: Side
) -> None:
    own, other = (
        replace(said(Verdict.ERROR, "KeyError: 'x'", Owner.NNSIGHT, owner), backend=name)
        for name in columns
    )
    if not same_words:
        other = replace(other, reason="RuntimeError: another thing")
    assert found(own, own, other, engines={**ENGINES, "hf": "hf"}).side is side


@pytest.mark.parametrize(
    ("off", "side"),
    [
        (("p0/s0/extracted.1",), Side.ENGINE),
        (("p0/s0/stream.1",), Side.NNSIGHT),
        ((), Side.UNDECIDED),  # both within the noise, and not the same bits
    ],
)
def test_what_the_engine_hands_out_itself_tells_its_faults_from_those_of_a_read(off, side):
    every = {"p0/s0/stream.1", "p0/s0/extracted.1", "p0/s0/logits"}
    failed = cell(scenario="extract", off=off, right=tuple(every - set(off)))
    for plain in (None, RIGHT):
        assert found(failed, plain=plain).side is side
    assert found(failed, plain=WRONG).side is Side.ENGINE
    both = cell(scenario="extract", off=("p0/s0/stream.1", "p0/s0/extracted.1"))
    assert found(both, plain=WRONG).side is Side.ENGINE
    assert "handed out" not in found(both).evidence

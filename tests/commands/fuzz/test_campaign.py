"""What differs is made small, named by its cause, and counted once; no engine is needed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.fuzz import campaign, causes, corpus, tally
from conformance.commands.fuzz.causes import Failure, ProgramDifference
from conformance.commands.fuzz.draw import ModelShape, draw
from conformance.commands.fuzz.shrinking import ROUNDS, Shrinking, Stage, few_columns
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.cell.reference import BASELINE_RUNS_DIFFER
from conformance.judge.expectations import Conditions, Entry, KnownGaps, Match
from conformance.judge.expectations.conditions import Where
from conformance.runner.scheduling import GroupFinished, RunSummary
from conformance.runner.store.files import write_record
from conformance.spec.programs import Do, ModelPart, Operation, Program, Tokens
from conformance.spec.records import (
    Backend,
    Cell,
    CellResult,
    Judged,
    Model,
    Precision,
    Source,
    Verdict,
    from_json,
    to_json,
)

HF, PP1, PP2 = Backend("hf", "hf"), Backend("vllm-pp1", "vllm"), Backend("vllm-pp2", "vllm", 2)
SHAPE = ModelShape(4, ("embedding", "attention", "mlp", "norm", "head"))
WHERE = Where(versions={}, devices=("cpu",), architecture="llama")
#: Baseline runs make several things of it.
UNCLEAR = Judged("edited/p0/s0/x", Verdict.UNKNOWN, BASELINE_RUNS_DIFFER)
ASKED = tally.CampaignRequest(
    ("llama",), ("hf", "vllm-pp1", "vllm-pp2"), 0, 1.0, None, 40, "none", True
)


def result(verdict: Verdict, reason: str = "", diagnosis: str = "", **more) -> CellResult:
    return CellResult(
        "program_1[llama-vllm-pp1-all]", "llama", "llama", "vllm-pp1", "program_1", "all",
        verdict, reason, 0.1, "", diagnosis=diagnosis, **more,
    )  # fmt: skip


def failing(backend: str, kind: str = "value") -> Failure:
    return Failure(backend, kind, Verdict.WRONG, "2 of 8 observations are off")


def shows(program: Program) -> dict[str, Failure]:
    """An engine that loses a write to an MLP's output in a trace of two prompts and more."""
    lost = [
        one
        for one in program.operations
        if (one.do, one.part) == (Do.ADD, ModelPart.MLP) and len(program.prompts) > 1
    ]
    return {one: failing(one) for one in ("vllm-pp1", "vllm-pp2")} if lost else {}


Fails = Callable[[Program], dict[str, Failure]]


def answers(work: Shrinking, fails: Fails) -> dict[str, dict[str, Failure]]:
    """How each candidate fails on the columns that it runs on."""
    here = {column.id for column in work.columns}
    return {
        one.name: {column: failed for column, failed in fails(one).items() if column in here}
        for one in work.candidates()
    }


def minimise(work: Shrinking, fails: Fails, until: Stage) -> None:
    while work.stage is not until:
        work.take(answers(work, fails))


def shrinking(program: Program, failures: dict[str, Failure], model: str = "llama") -> Shrinking:
    return Shrinking(model, program, program, failures, (HF, PP1), (HF, PP1, PP2))


def acts(program: Program) -> list[tuple[Do, ModelPart]]:
    return [(one.do, one.part) for one in program.operations]


@pytest.mark.parametrize("seed", range(6))
def test_what_differs_becomes_as_small_as_what_shows_it(seed: int):
    program = next(one for one in draw(2000, seed, SHAPE) if shows(one) and len(one.operations) > 2)
    failures = shows(program)
    assert few_columns(failures, (HF, PP1, PP2)) == (HF, PP1)
    one = shrinking(program, {"vllm-pp1": failures["vllm-pp1"]})
    minimise(one, shows, Stage.DONE)
    assert acts(one.program) == [(Do.ADD, ModelPart.MLP)]
    assert len(one.program.prompts) == 2 and one.program.steps == 1
    assert one.rounds <= ROUNDS + 1
    assert set(one.failures) == {"vllm-pp1", "vllm-pp2"}


@pytest.mark.parametrize(
    "do", [Do.ADD, Do.SCALE, Do.ZERO, Do.REPLACE, Do.PROJECT, Do.DIFFERENCE, Do.PRODUCT]
)
def test_a_write_where_what_is_read_differs_becomes_the_read(do: Do):
    """A place that is something else on one column: what is written there is read back there."""
    program = Program(
        ("One", "One two"), (Operation(do, ModelPart.ATTENTION, 1, amount=0.5, seed=2),)
    )
    far = sized(0.5, "vllm-pp1")
    work = shrinking(program, far, "bloom")

    def fails(one: Program) -> dict[str, Failure]:
        return far if ModelPart.ATTENTION in {op.part for op in one.operations} else {}

    minimise(work, fails, Stage.WHOLE)
    assert acts(work.program) == [(Do.READ, ModelPart.ATTENTION)]


def test_the_cause_is_one_whatever_layer_amount_and_text():
    one = Program(("One", "One two"), (Operation(Do.ADD, ModelPart.MLP, 1, amount=0.5, seed=2),))
    other = Program(("Three", "One two"), (Operation(Do.ADD, ModelPart.MLP, 3),))
    failures = {"vllm-pp1": failing("vllm-pp1")}
    assert causes.cause_of("llama", one, failures) == causes.cause_of("llama", other, failures)
    row = Program(other.prompts, (replace(other.operations[0], tokens=Tokens.LAST),))
    assert causes.cause_of("llama", row, failures) != causes.cause_of("llama", one, failures)
    crashed = {"vllm-pp1": failing("vllm-pp1", "crash")}
    assert causes.cause_of("llama", one, crashed) != causes.cause_of("llama", one, failures)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (result(Verdict.MATCH), False),
        (result(Verdict.DRIFT), False),
        (result(Verdict.UNSUPPORTED, "says so"), False),
        (result(Verdict.VACUOUS), False),
        (result(Verdict.VACUOUS, observations=(Judged("p0/s0/x", Verdict.WRONG),)), True),
        (result(Verdict.VACUOUS, observations=(UNCLEAR,)), False),
        (result(Verdict.VACUOUS, observations=(UNCLEAR, Judged("x", Verdict.WRONG))), True),
        (result(Verdict.UNKNOWN, harness=True), False),
        *[(result(one), True) for one in (Verdict.WRONG, Verdict.CRASH, Verdict.TIMEOUT)],
    ],
)
def test_what_is_a_difference(cell: CellResult, expected: bool):
    assert causes.differs(cell) is expected


def test_a_program_without_one_result_is_no_failure_of_the_harness():
    fine, off = Judged("edited/p0/s0/y", Verdict.MATCH), Judged("edited/p0/s0/y", Verdict.WRONG)
    assert causes.is_undetermined(
        result(Verdict.UNKNOWN, harness=True, observations=(fine, UNCLEAR))
    )
    assert not causes.is_undetermined(result(Verdict.WRONG, observations=(off, UNCLEAR)))
    assert not causes.is_undetermined(result(Verdict.UNKNOWN, "no reference", harness=True))


def test_errors_are_alike_whose_words_differ_in_numbers_only():
    words = ("ValueError: 3 rows at 0x7f12, not 4\nmore", "ValueError: 5 rows at 0x8f, not 1")
    kinds = {causes.describe_failure(result(Verdict.ERROR, one)).kind for one in words}
    assert len(kinds) == 1
    assert causes.describe_failure(result(Verdict.ERROR, "KeyError: x")).kind not in kinds


def entry(**more) -> Entry:
    what = {"verdict": Verdict.WRONG, "reason": "The scale\n comes later.", "reproduce": "x"}
    return Entry(match=Match(**more.pop("match", {})), date=dt.date(2026, 1, 1), **{**what, **more})


def test_a_gap_of_another_scenario_is_known_by_its_words_on_the_same_column():
    cell = result(Verdict.WRONG, "off", "holds the value without the embedding's scale")
    plain = Cell("llama", "vllm-pp1", "program_1", "all")

    def known(**more) -> str:
        return causes.find_reason(KnownGaps((entry(**more),)), cell, plain, WHERE)

    accessors = {"scenario": "accessors", "backend": "vllm-pp1"}
    assert known(match=accessors, says="without the embedding's scale") == "The scale comes later."
    assert known(match=accessors, says="something else") == ""
    assert known(match={**accessors, "backend": "hf"}, says="without") == ""
    assert known(match=accessors, says="without", when=Conditions(architecture="gemma*")) == ""
    # No words, or such as stand in any cell that is off: it would excuse whatever a program shows.
    assert known(match=accessors, says="") == ""
    assert known(match=accessors, says="off") == ""


def difference(program: Program, **more) -> ProgramDifference:
    failures = tuple(shows(program).values())
    by = {one.backend: one for one in failures}
    cause = causes.cause_of("llama", program, by)
    return ProgramDifference("llama", program, failures, program, cause, **more)


LEAST = Program(("One", "One two"), (Operation(Do.ADD, ModelPart.MLP, 1),))


READ = Operation(Do.READ, ModelPart.ATTENTION, 1)
ADDED = Operation(Do.ADD, ModelPart.ATTENTION, 3)
ZERO = Operation(Do.ZERO, ModelPart.STREAM, 2)


@pytest.mark.parametrize(
    ("known", "operations", "shown"),
    [
        (LEAST.operations[0], (ZERO, Operation(Do.ADD, ModelPart.MLP, 3)), {1}),
        (LEAST.operations[0], (ZERO,), None),
        (READ, (ZERO, ADDED), {1}),  # what is written is read back
        (READ, LEAST.operations, None),
        (ADDED, (READ,), None),  # a write that is known says nothing of a read
        (Operation(Do.READ, layer=1), (Operation(Do.SKIP, layer=1),), None),
    ],
)
def test_a_known_difference_is_seen_in_a_larger_program(known, operations, shown):
    found = replace(difference(LEAST), program=Program(("One",), (known,)))
    assert causes.find_operations(found, replace(LEAST, operations=operations)) == shown


def sized(size: float | None, *columns: str) -> dict[str, Failure]:
    return {b: replace(failing(b), size=size) for b in columns or ("vllm-pp1", "vllm-pp2")}


#: Two definitions of a model that differ by a little, whatever a program does.
ANYWHERE = ProgramDifference(
    "llama", replace(LEAST, operations=()), tuple(sized(2e-4).values()),
    replace(LEAST, operations=()), "llama|vllm-pp1+vllm-pp2|value|nothing|1p1s1t",
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "hidden"), [(2e-4, True), (1e-3, True), (0.5, False), (None, False)]
)
def test_what_is_a_little_off_anywhere_hides_nothing_that_is_far_off(tmp_path, size, hidden):
    one = running(tmp_path, differences=(ANYWHERE,))
    one._take_up("llama", LEAST, sized(size))
    assert one.state.differences[0].again == hidden
    assert bool(one._in_work) is not hidden


def test_what_is_far_off_is_not_made_small_into_what_is_a_little_off_anywhere():
    """Each program is off by a little; one with the write to the MLP is far off."""
    far, little = sized(0.5, "vllm-pp1"), sized(2e-4, "vllm-pp1")
    larger = replace(LEAST, operations=(Operation(Do.ZERO, layer=2), *LEAST.operations))
    work = shrinking(larger, far)
    minimise(work, lambda one: far if shows(one) else little, Stage.WHOLE)
    assert acts(work.program) == [(Do.ADD, ModelPart.MLP)]
    assert causes.same_failures(sized(None), sized(2e-4))


def running(
    tmp_path: Path, state: tally.CampaignState | None = None, **more: object
) -> campaign.Campaign:
    state = state or tally.CampaignState(ASKED, **more)
    model = Model("llama", "llama", (Source("tiny"),))
    asked = replace(state.asked, corpus=str(tmp_path / "corpus"))
    return campaign.Campaign(
        replace(state, asked=asked), [model], [HF, PP1, PP2],
        folder=tmp_path, gaps=KnownGaps(), cache=tmp_path,
    )  # fmt: skip


def finish(one: campaign.Campaign, fails: Fails) -> None:
    """Minimise all that a campaign has in work."""
    while one._in_work:
        work = one._due.pop(0)
        one._go_on(work, answers(work, fails))


def test_a_difference_that_is_known_is_counted_and_one_in_a_larger_program_peeled(tmp_path):
    one = running(tmp_path, differences=(difference(LEAST),))
    again = replace(LEAST, prompts=("x", "y", "z"))
    one._take_up("llama", again, shows(again))
    assert one.state.differences[0].again == 1 and not one._in_work
    larger = replace(LEAST, operations=(Operation(Do.ZERO, layer=2), *LEAST.operations))
    one._take_up("llama", larger, shows(larger))
    [peeled] = one._in_work
    assert peeled.stage is Stage.PEEL
    assert [o.do for o in peeled.program.operations] == [Do.ZERO]
    one._go_on(peeled, {peeled.program.name: {}})
    assert one.state.differences[0].again == 2 and not one._in_work


def test_what_differs_once_and_not_again_is_a_finding_and_not_dropped(tmp_path):
    one = running(tmp_path)
    one._take_up("llama", LEAST, shows(LEAST))
    finish(one, lambda _: {})
    [found] = one.state.differences
    assert found.program == found.drawn == LEAST
    assert [failed.backend for failed in found.failures] == ["vllm-pp1"]
    assert not found.explained


@pytest.mark.parametrize("precision", list(Precision))
def test_what_bf16_alone_shows_is_made_smaller_in_bf16(tmp_path, precision):
    one = running(tmp_path)
    failures = {b: replace(f, precision=precision) for b, f in shows(LEAST).items()}
    one._take_up("llama", LEAST, failures)
    [work] = one._in_work
    only = (Precision.FLOAT32,) if precision is Precision.FLOAT32 else tuple(Precision)
    assert work.precisions == only


def test_what_waits_is_taken_up_when_what_looks_alike_is_small(tmp_path):
    one = running(tmp_path)
    programs = [one for one in draw(3000, 5, SHAPE) if shows(one)][:5]
    for program in programs:
        one._take_up("llama", program, shows(program))
    assert len(one._in_work) == campaign.ALIKE and len(one.state.waiting) == 3
    finish(one, shows)
    [found] = one.state.differences
    assert found.again == 4 and not one.state.waiting
    assert acts(found.program) == [(Do.ADD, ModelPart.MLP)]


def test_a_campaign_is_read_back_as_it_was_written(tmp_path):
    one = running(tmp_path, differences=(difference(LEAST),))
    one._take_up("llama", LEAST, {"hf": failing("hf")})
    one._save()
    state = campaign.read(tmp_path)
    assert state.differences == one.state.differences and len(state.waiting) == 1
    assert len(running(tmp_path, state)._in_work) == 1
    with pytest.raises(ConformanceError, match="no campaign"):
        campaign.open_campaign(tmp_path, "latest")


def test_the_corpus_says_what_must_be_seen_again(tmp_path):
    path = corpus.keep(tmp_path / "corpus", difference(LEAST, explained="known to be so"))
    [kept] = corpus.read(tmp_path / "corpus").values()
    assert kept.program == LEAST and kept.why == "known to be so"
    one = running(tmp_path)
    one._replayed("llama", LEAST, shows(LEAST))
    assert not one.state.fixed and not one.state.changed and one.state.replayed == 1
    again = replace(LEAST, prompts=("x", "y", "z"))
    one._take_up("llama", again, shows(again))
    [known] = one.state.differences
    assert (known.explained, known.again) == ("known to be so", 1) and not one._in_work
    one._replayed("llama", LEAST, {})
    assert one.state.fixed == (path.stem,)
    one._replayed("llama", LEAST, {"hf": failing("hf")})
    assert path.stem in one.state.changed[0]
    path.write_text(path.read_text().replace('"mlp"', '"input"'))
    with pytest.raises(ConformanceError, match="not written to"):
        corpus.read(tmp_path / "corpus")


def test_a_difference_of_the_corpus_is_not_new(tmp_path):
    corpus.keep(tmp_path / "corpus", difference(LEAST, explained="known to be so"))
    one = running(tmp_path)
    one._take_up("llama", LEAST, shows(LEAST))
    [work] = one._in_work
    work.stage, work.failures = Stage.DONE, shows(LEAST)
    one._conclude(work)
    assert one.state.differences[0].explained == "known to be so"
    assert tally.exit_code(one.state) is ExitCode.OK


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, ExitCode.OK),
        ({"differences": (difference(LEAST),)}, ExitCode.UNEXPECTED),
        ({"differences": (difference(LEAST, explained="x"),)}, ExitCode.OK),
        ({"fixed": ("x",)}, ExitCode.UNEXPECTED),
        ({"changed": ("x",)}, ExitCode.UNEXPECTED),
        ({"harness": ("x",), "differences": (difference(LEAST),)}, ExitCode.HARNESS),
        ({"undetermined": {"llama": 4}, "drawn": {"llama": 50}}, ExitCode.OK),
        ({"undetermined": {"llama": 5}, "drawn": {"llama": 50}}, ExitCode.HARNESS),
        ({"undetermined": {"llama": 15}, "drawn": {"llama": 900}}, ExitCode.OK),
    ],
)
def test_exit_codes(more, code):
    assert tally.exit_code(tally.CampaignState(ASKED, **more)) is code


def test_the_figures_are_said():
    state = tally.CampaignState(
        ASKED, drawn={"llama": 10}, seconds=5.0, verdicts={"match": 30},
        covered={"add at mlp": 3}, refusals={"cannot": 2}, differences=(difference(LEAST),),
    )  # fmt: skip
    text = "\n".join(tally.summary(state))
    for words in ("2.00 a second", "30 match", "add at mlp 3", "refused 2 times", "NEW: llama"):
        assert words in text


def test_what_was_drawn_and_not_judged_is_drawn_again_by_a_resumed_campaign(tmp_path, monkeypatch):
    checkpoint = type("Checkpoint", (), {"layers": 4})
    monkeypatch.setattr(campaign, "locate", lambda *_: checkpoint)
    one = running(tmp_path)
    first = [trial.program for trial in one._draw("llama")]
    assert [trial.program for trial in one._draw("llama")] != first
    one._save()
    resumed = running(tmp_path, campaign.read(tmp_path))
    assert [trial.program for trial in resumed._draw("llama")] == first


def test_checkpoints_are_made_before_a_program_is_drawn(tmp_path):
    first, second, *_ = running(tmp_path)._planned()
    assert (first.id, second.id) == ("llama:build", "0:build")
    assert second.after == ("llama:build",)
    assert first.make().checkpoint == tmp_path


def test_a_checkpoint_that_cannot_be_made_ends_the_campaign(tmp_path, monkeypatch):
    asked_of = []

    def run_jobs(planned, *, on_event, **_):
        on_event(GroupFinished("llama:build", ok=False, reason="no source works", reused=False))
        asked_of.extend(job.make() for job in planned[1:20])

    monkeypatch.setattr(campaign, "run_jobs", run_jobs)
    with pytest.raises(ConformanceError, match="no source works"):
        running(tmp_path).run()
    assert asked_of == [None] * 19


@pytest.mark.parametrize(
    "model", ["../../../../OUT", "/proc/x", "..", ".", "a/../../b", "a\0b", "-m"]
)
def test_no_cause_names_a_file_elsewhere(tmp_path, model):
    folder = tmp_path / "a" / "b" / "c" / "d" / "corpus"
    found = replace(difference(LEAST), cause=f"{model}|x|y")
    assert corpus.keep(folder, found).resolve().parent == folder
    assert causes.slug("llama-3.1|hf|value|add-mlp|1p").startswith("llama_3.1_add_mlp_")


@pytest.mark.parametrize(("kind", "key"), [(ProgramDifference, "model"), (Failure, "backend")])
def test_no_name_in_a_campaign_leads_out(kind, key):
    one = difference(LEAST) if kind is ProgramDifference else failing("hf")
    assert from_json(kind, to_json(one)) == one
    with pytest.raises(ValidationError, match=key):
        from_json(kind, to_json(replace(one, **{key: "../../OUT"})))


def test_a_campaign_that_goes_on_writes_where_the_command_line_says(tmp_path, monkeypatch):
    """Its file names the corpus too, and may be anybody's."""
    elsewhere = tmp_path / "elsewhere"
    folder = tmp_path / "here" / "reports" / "fuzz" / "r"
    folder.mkdir(parents=True)
    (tmp_path / "here" / "models.yaml").write_text(
        json.dumps({"models": {"llama": {"tiny": {}}}, "backends": {"hf": {"engine": "hf"}}})
    )
    asked = replace(ASKED, corpus=str(elsewhere), backends=("hf",), frozen=False)
    found = difference(LEAST, explained="known to be so")
    write_record(folder / campaign.STATE, tally.CampaignState(asked, differences=(found,)))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(campaign.Campaign, "run", lambda _: RunSummary({}, 1.0, 1.0, False, 1, 0))
    command = ["fuzz", "--resume", "r", "--reports", "reports", "--models", "models.yaml"]
    ran = CliRunner().invoke(app, command)
    assert isinstance(ran.exception, ConformanceError), ran.output
    assert f"--corpus {elsewhere}" in ran.exception.remedy
    assert not elsewhere.exists()
    assert CliRunner().invoke(app, [*command, "--corpus", str(elsewhere)]).exit_code == 0
    assert [path.suffix for path in elsewhere.iterdir()] == [".json"]

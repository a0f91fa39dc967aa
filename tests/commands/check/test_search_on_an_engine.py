"""The search on a real engine: its edit makes the file agree, and a bad one costs itself alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench import check_examples
from conformance.commands.check import answer, gather, stored_check
from conformance.commands.check.checked import CheckAnswer
from conformance.commands.check.gather import CheckRequest
from conformance.commands.check.searching import read_search_results
from conformance.runner.planning import named
from conformance.runner.scheduling import Further, TimeLimits
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.builtin.user_trace import case_of
from conformance.spec.inputs import user_file
from conformance.spec.records import Precision, Status

ROOT = Path(__file__).parent.parent.parent.parent

MISTAKE = '''\
"""Half of the stream is read, and half of it is written."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:] *= 0.5
        hidden = model.model.layers[2].output[:, -1].save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].output[0][:] *= 0.5
        hidden = model.model.layers[2].output[0][-1].clone().save()
    return {"hidden": hidden}
'''

GOOD = """\
def hf(model):
    with model.trace("The capital of France is"):
        hidden = model.model.layers[2].mlp.output.save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace("The capital of France is", temperature=0.0, max_tokens=1):
        BODY
        hidden = model.model.layers[2].mlp.output.clone().save()
    return {"hidden": hidden}
"""

#: What a candidate may do to its engine, and how its case ends.
DAMAGE = {
    "hangs": ("__import__('time').sleep(3600)", {Status.TIMEOUT}),
    "allocates": ("kept = [bytearray(1 << 28) for _ in range(1 << 12)]", {Status.ERROR}),
    "exits": ("__import__('os')._exit(3)", {Status.CRASH, Status.MISSING}),
    "raises": ("1 / 0", {Status.ERROR}),
    "damages": ("model.model.layers[2].mlp.down_proj.weight[:] = 0", {Status.OK, Status.ERROR}),
}


@pytest.mark.engine
def test_a_verified_edit_makes_the_file_agree_and_a_bad_one_costs_itself_alone(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MISTAKE)
    options = ("--fix", "--search", "300", "--reports", str(tmp_path / "checks"))
    code, answers = check_examples.check([path], "llama", (), *options)
    [found] = answers.values()
    assert (code, found["answer"], found["verified"]) == (1, "differs", True)
    assert path.read_text() == found["fixed"] != MISTAKE
    assert (tmp_path / "mine.py.orig").read_text() == MISTAKE
    assert found["diff"].count("\n+ ") >= 2
    harm_the_engine(tmp_path, path)


def harm_the_engine(tmp_path, fixed):
    """Of the fixed file another session must say that it agrees. Then candidates harm its engine:
    each costs itself alone.
    """
    path = tmp_path / "good.py"
    path.write_text(GOOD.replace("BODY", "pass"))
    model = named.find_model("llama", ROOT / "models.yaml")
    columns = named.columns(["vllm-pp1"])
    files = user_file.read_all([path, fixed])
    request = CheckRequest(files, model, columns, (), "llama", memory=2)
    run = stored_check.begin(request, tmp_path / "checks")
    folder = gathered_in("vllm-pp1", Precision.FLOAT32)
    job = f"{model.id}:{folder}"
    ended = {}

    def steps():
        for name, (body, _) in DAMAGE.items():
            cases = [version(tmp_path, name, body), version(tmp_path, f"{name}-after", "pass")]
            yield {job: Further(tuple(cases), 8.0)}
            for case in cases:
                seen = run.observations(model.id, folder, case.key)
                ended[case.key] = run.outcome(model.id, folder, case.key), seen

    before = {process.pid for process in psutil.process_iter()}
    gather.gather(request, run, TimeLimits(cell=60, load=600), lambda _: None, steps())
    answers = {one.key: one.checked.answer for one in answer.answers(request, run)}
    assert answers == {"good": CheckAnswer.SAME, "mine": CheckAnswer.SAME}
    first = values(run.observations(model.id, folder, "check.good"))
    for name, (_, statuses) in DAMAGE.items():
        assert ended[f"check.{name}"][0].status in statuses, name
        outcome, seen = ended[f"check.{name}-after"]
        assert outcome.status is Status.OK, name
        # The next version meets an engine that computes what the first one did.
        assert (values(seen) == first).all(), name
    assert not ours(before)


def version(folder: Path, name: str, body: str):
    path = folder / f"{name}.py"
    path.write_text(GOOD.replace("BODY", body))
    return replace(case_of(name, path, "vllm", ()), name=name)


def values(seen):
    return seen["p0/s0/hidden"]


def ours(before: set[int]) -> list[str]:
    """Engine processes that are left."""
    words = ("conformance.worker", "VLLM")
    return [
        process.info["name"]
        for process in psutil.process_iter(["name", "cmdline", "ppid"])
        if process.pid not in before
        and process.is_running()
        and any(word in " ".join(process.info["cmdline"] or []) for word in words)
        and psutil.Process().pid in {p.pid for p in process.parents()}
    ]


def test_a_run_folder_has_no_edits_before_a_search(tmp_path):
    assert read_search_results(RunFolder(tmp_path)) == ()

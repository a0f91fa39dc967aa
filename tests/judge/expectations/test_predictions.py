"""An entry that predicts excuses what it predicts, and the rules that it names; nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.judge.expectations import assess, conclude, mark_findings
from conformance.judge.expectations.entries import load
from conformance.spec.records import Answer, Finding, Judged, Precision, Relation, Verdict
from tests import known_runs as made

MATCH = "{ model: llama, backend: hf, scenario: steering, case: first }"
BROKEN = Relation("mlp ≡ kept", holds=False)
OFF = (Judged("p0/s0/logits", Verdict.WRONG),)


def entry(tmp_path: Path, *lines: str, verdict: str = "wrong"):
    path = tmp_path / "known.yaml"
    head = f"known:\n  - match: {MATCH}\n    verdict: {verdict}\n"
    body = textwrap.indent("\n".join([*lines, "reason: r", "link: l", "date: 2026-11-21"]), "    ")
    path.write_text(head + body + "\n")
    return load(path)


def finding(known, **cell) -> Finding:
    results = made.results(
        cells=[made.cell(**{"verdict": Verdict.WRONG, "reason": "kept", **cell})]
    )
    return assess(results, known, made.TODAY)[0].finding


def beside(*predicted: str) -> Answer:
    return Answer(Precision.BF16, Verdict.WRONG, "off", predicted=predicted)


def test_what_fits_its_prediction_is_known_and_what_does_not_is_new(tmp_path: Path) -> None:
    known = entry(tmp_path, "prediction: vllm-bloom")
    assert finding(known, predicted=("vllm-bloom",)) is Finding.KNOWN
    assert finding(known) is Finding.UNEXPECTED
    assert finding(known, predicted=("vllm-gpt_oss",)) is Finding.UNEXPECTED
    fits = {"predicted": ("vllm-bloom",), "precision": Precision.FLOAT32}
    assert finding(known, **fits, beside=beside("vllm-bloom")) is Finding.KNOWN
    assert finding(known, **fits, beside=beside()) is Finding.UNEXPECTED
    dropped = {"verdict": Verdict.DROPPED, "predicted": ("vllm-bloom",)}
    assert finding(known, **dropped) is Finding.UNEXPECTED


@pytest.mark.parametrize("words", ["says: kept", "prediction: vllm-bloom"])
def test_rules_that_do_not_hold_are_excused_by_name(tmp_path: Path, words: str) -> None:
    cell = {"predicted": ("vllm-bloom",), "relations": (BROKEN,)}
    assert finding(entry(tmp_path, words), **cell) is Finding.UNEXPECTED
    named = entry(tmp_path, words, 'relations: ["* ≡ kept"]')
    assert finding(named, **cell) is Finding.KNOWN
    other = (BROKEN, Relation("bitwise equal to vllm-pp1", holds=False))
    assert finding(named, **cell | {"relations": other}) is Finding.UNEXPECTED
    shown = (BROKEN, Relation("the same bits everywhere", holds=False, gates=False))
    assert finding(named, **cell | {"relations": shown}) is Finding.KNOWN


@pytest.mark.parametrize("verdict", ["unsupported", "skipped", "untestable", "missing"])
def test_a_refusal_and_a_missing_value_are_known_by_what_they_say(tmp_path, verdict):
    with pytest.raises(ConformanceError, match="without `says`"):
        entry(tmp_path, verdict=verdict)
    known = entry(tmp_path, "says: no such kernel", verdict=verdict)
    said = {"verdict": Verdict(verdict), "reason": "there is no such kernel"}
    assert finding(known, **said) is Finding.KNOWN
    assert finding(known, **said | {"reason": "no room"}) is Finding.UNEXPECTED


@pytest.mark.parametrize(
    ("lines", "verdict", "words"),
    [
        (["prediction: vllm-blom"], "wrong", "nothing predicts 'vllm-blom'"),
        (["prediction: vllm-bloom"], "unsupported", "a prediction is one of values"),
    ],
)
def test_a_prediction_that_cannot_be_is_refused(tmp_path, lines, verdict, words):
    with pytest.raises(ConformanceError, match=words):
        entry(tmp_path, *lines, verdict=verdict)


def test_cells_that_rest_on_words_are_counted(tmp_path: Path) -> None:
    def counted(*lines: str, **cell) -> int:
        values = {"verdict": Verdict.WRONG, "reason": "kept", "observations": OFF, **cell}
        run = made.results(cells=[made.cell(**values)])
        judged = mark_findings(run, entry(tmp_path, *lines), made.TODAY)
        found = conclude(judged.cells, judged.gaps)
        assert found.findings == {Finding.KNOWN: 1}
        assert ("without a prediction" in found.rest) is bool(found.unpredicted)
        return found.unpredicted

    assert counted("says: kept") == 1
    assert counted("prediction: vllm-bloom", predicted=("vllm-bloom",)) == 0

"""docs/numerics.md quotes the judge: every limit, every constant, the order of the verdicts."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from conformance.commands.selftest.faults_page import only_bf16
from conformance.judge.cell.diagnosis import testing_hypotheses
from conformance.judge.cell.judgement import ORDER
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.reference import FEWEST_BASELINE_RUNS
from conformance.spec.records import Limits, Precision, Thresholds

TEXT = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
WORDS = {2: "Two", 4: "four", 13: "thirteen"}
SUPERSCRIPT = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def section(heading: str) -> str:
    return TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def number(text: str) -> float:
    """`100`, `1e-05` or `2⁻¹²`."""
    power = re.fullmatch(r"2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", text)
    return 2.0 ** int(power.group(1).translate(SUPERSCRIPT)) if power else float(text)


QUOTED = {
    name: (number(float32), number(bf16))
    for name, float32, bf16 in re.findall(
        r"^\| `(\w+)` \| (\S+) \| (\S+) \|", section("The limits"), re.MULTILINE
    )
}
CONSTANTS = re.findall(r"^\| `(conformance[\w.]+)` \| (\S+)", section("The limits"), re.MULTILINE)


def test_every_limit_is_quoted() -> None:
    assert set(QUOTED) == {each.name for each in fields(Limits)}


@pytest.mark.parametrize("name", QUOTED)
def test_every_limit_is_the_judges(name: str) -> None:
    limits = Thresholds()
    assert QUOTED[name] == (getattr(limits.float32, name), getattr(limits.bf16, name))


@pytest.mark.parametrize(("name", "quoted"), CONSTANTS)
def test_every_constant_is_the_codes(name: str, quoted: str) -> None:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    assert float(quoted) == (value[Precision.BF16] if isinstance(value, dict) else value)


def test_a_rounding_to_float32_is_as_much_smaller_as_is_said() -> None:
    assert len(CONSTANTS) >= 5 and "2¹⁶ times less in float32" in TEXT
    assert metrics.ROUNDING[Precision.BF16] / metrics.ROUNDING[Precision.FLOAT32] == 2.0**16


def test_the_faults_that_only_bf16_shows_are_named() -> None:
    [(count, names)] = re.findall(r"\*\*Only bf16 can show\*\* (\w+) of (.*?)\.\s", TEXT, re.DOTALL)
    assert re.findall(r"`([\w-]+)`", names) == only_bf16()
    assert count == WORDS[len(only_bf16())]


def test_what_the_text_says_in_words_holds() -> None:
    text = " ".join(TEXT.split())
    assert f"at most {metrics.MASSIVE:g} times the row's median" in text
    float32, bf16 = FEWEST_BASELINE_RUNS[Precision.FLOAT32], FEWEST_BASELINE_RUNS[Precision.BF16]
    assert f"{WORDS[float32]} in float32 and {WORDS[bf16]} in bf16 are the fewest" in text
    assert testing_hypotheses._CLEARLY == 3 and "within three times that" in text
    limits = Thresholds()
    assert limits.float32.k_max == limits.float32.far_max and "nothing drifts there" in text
    assert limits.bf16.k_med == 1.5 and "from one and a half times the floor on" in text
    assert limits.bf16.far_med == 2**4 and "half of the precision's eight bits" in text


def test_the_order_of_the_verdicts_is_the_judges() -> None:
    """From the first that a judge gives; how gathering ended comes before them."""
    told = re.findall(r"`(\w+)`", section("The order of verdicts").split("\n\n")[0])
    ended = told[: told.index("missing")]
    judged = [str(verdict) for verdict in ORDER if str(verdict) not in ended]
    assert told[told.index("missing") :] == judged

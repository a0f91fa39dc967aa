"""What a stream is mistaken for, and which layer is to blame, on real engines and models."""

from __future__ import annotations

import pytest

from conformance.spec.records import CellResult, Side, Verdict
from tests.end_to_end.conftest import Ran

pytestmark = pytest.mark.engine

#: The scenarios of broken_streams.
OWN = {"computed", "parts"}

SAYS = {
    "mlp_only": "stream after layers 0-3 holds the MLP output without the residual",
    "mlp_missing": "stream after layers 0-3 holds the residual without the MLP output",
    "mlp_twice": "stream after layers 0-3 holds the stream with the MLP output counted twice",
    "attention_only": "stream after layers 0-3 holds the attention output without the residual",
    "attention_missing": "stream after layers 0-3 holds the residual without the attention output",
    "residual_twice": "the stream with the residual before the MLP counted twice",
    "normed": "stream after layers 0-2 holds the stream after the next norm",
    "previous": "stream after layers 1-3 holds the value of the previous layer",
    "next": "stream after layers 0-2 holds the value of the next layer",
    "doubled": "stream after layers 0-3 holds twice the right value",
    "embedding_scale": "the right value with the embedding's scale once more",
}


def made(broken: Ran) -> dict[tuple[str, str, str], CellResult]:
    """By model, backend and case."""
    own = (cell for cell in broken.results.cells if cell.scenario in OWN)
    return {(cell.model, cell.backend, cell.case): cell for cell in own}


def test_each_is_named(broken: Ran) -> None:
    wrong = {}
    cells = [cell for cell in made(broken).values() if cell.case in SAYS]
    for cell in cells:
        named = SAYS[cell.case] in cell.diagnosis and "both look the same" not in cell.diagnosis
        if cell.verdict is not Verdict.WRONG or not named:
            wrong[cell.id] = f"{cell.verdict}: {cell.diagnosis or cell.reason}"
    assert wrong == {}
    assert {(cell.case, cell.model, cell.backend) for cell in cells} == {
        (kind, model, backend)
        for kind in SAYS
        for model in ("llama", "gpt2")
        for backend in ("hf", "vllm-pp1")
    }


def test_half_the_stream_on_vllm_is_the_missing_residual(broken: Ran) -> None:
    cell = made(broken)["llama", "vllm-pp1", "first_summand"]
    assert "holds the MLP output without the residual" in cell.diagnosis
    assert cell.attribution is not None
    assert cell.attribution.side is Side.NNSIGHT
    assert "its own 16 tokens and their log-probabilities" in cell.attribution.evidence


@pytest.mark.parametrize("backend", ["hf", "vllm-pp1"])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_the_layer_that_computes_something_else_is_found(
    broken: Ran, model: str, backend: str
) -> None:
    cell = made(broken)[model, backend, "all"]
    assert cell.verdict is Verdict.WRONG
    words = "the first difference is after layer 2, and everything after it differs too"
    assert words in cell.diagnosis
    assert "layer 2 introduces the error, layer 3 only inherits it" in cell.diagnosis


def test_where_a_layer_gives_the_whole_stream_its_first_part_is_right(broken: Ran) -> None:
    passing = {key: cell for key, cell in made(broken).items() if cell.verdict.passes}
    assert set(passing) == {
        ("llama", "hf", "first_summand"),
        ("gpt2", "hf", "first_summand"),
        ("gpt2", "vllm-pp1", "first_summand"),
    }
    assert all(cell.attribution is None for cell in passing.values())

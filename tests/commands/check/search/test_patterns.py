"""Patterns fit by structure, and what stands in their holes is put into another text."""

from __future__ import annotations

import pytest

from conformance.commands.check.search.program import ParsedFile


def found(pattern: str, line: str, text: str) -> list[str]:
    """What `text` becomes for each place of a line that fits a pattern."""
    program = ParsedFile(f"def vllm(model):\n    {line}\n", "vllm")
    return [program.filled(text, holes) for _, holes in program.matches(pattern)]


@pytest.mark.parametrize(
    ("pattern", "line", "text", "made"),
    [
        ("X.to(A)", "h = (a + b).to( torch.half )", "X.clone()", ["(a + b).clone()"]),
        ("X.to(A)", "h = a.to(b, c)", "X", []),
        ("X[0] + X[1]", "h = layer.output[0] + layer.output[1]", "X", ["layer.output"]),
        ("X[0] + X[1]", "h = one[0] + other[1]", "X", []),
        ("A, B = X.output", "mlp, _ = layers[2].output", "f(A, X)", ["f(mlp, layers[2])"]),
        ("A @ B", "h = x @ (y + z).T", "norm(A) @ B", ["norm(x) @ (y + z).T"]),
    ],
)
def test_a_pattern_fits_what_has_its_structure(pattern, line, text, made):
    assert found(pattern, line, text) == made

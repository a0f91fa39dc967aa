"""A misspelt key of a tiny model is refused with its line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning import selection
from conformance.spec.inputs import manifest
from conformance.spec.inputs.config_keys import config_keys

ROOT = Path(__file__).parents[3]
FILE = """\
extends: built-in
models:
  mine:
    architecture: {architecture}
    tiny:
      vocab_size: 512
      {key}: 704
"""


def load(folder: Path, architecture: str, key: str) -> object:
    path = folder / "models.yaml"
    path.write_text(FILE.format(architecture=architecture, key=key))
    known = manifest.load(path)
    selection.check_sources([model for model in known.models if model.id == "mine"], known, path)
    return known


@pytest.mark.parametrize(
    ("architecture", "key", "near"),
    [
        ("llama", "intermediate_sise", "intermediate_size"),
        ("mixtral", "num_experts_per_token", "num_experts_per_tok"),
        ("gpt2", "n_iner", "n_inner"),
    ],
)
def test_a_key_that_the_class_has_not_is_refused_with_its_line(
    tmp_path: Path, architecture: str, key: str, near: str
) -> None:
    with pytest.raises(ConformanceError, match=near) as caught:
        load(tmp_path, architecture, key)
    assert caught.value.code is ExitCode.BAD_INPUT
    assert caught.value.line == 7 and caught.value.path == tmp_path / "models.yaml"


@pytest.mark.parametrize(
    ("architecture", "key"),
    [("llama", "intermediate_size"), ("gpt2", "n_inner"), ("gpt2", "hidden_size")],
)
def test_its_own_keys_and_their_other_names_are_taken(
    tmp_path: Path, architecture: str, key: str
) -> None:
    assert load(tmp_path, architecture, key)


def test_of_an_architecture_that_nobody_defines_nothing_is_said(tmp_path: Path) -> None:
    assert config_keys("made_up") is None


@pytest.mark.engine
def test_no_class_has_a_key_that_its_source_does_not_show() -> None:
    from transformers import CONFIG_MAPPING

    for model in manifest.load(ROOT / "models.yaml").models:
        kind = CONFIG_MAPPING[model.architecture]
        known = config_keys(model.architecture)
        assert known is not None
        assert {*kind().to_dict(), *kind.attribute_map} - known <= {"transformers_version"}

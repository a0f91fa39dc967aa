"""Which model a check is on, and which engines it can be compared with."""

from pathlib import Path

import pytest

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning import named

ROOT = Path(__file__).parent.parent.parent.parent
LISTED = ROOT / "models.yaml"


def test_a_local_folder_is_taken_as_it_lies(tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    found = named.find_model(str(folder), tmp_path / "absent.yaml")
    assert (found.id, found.architecture, found.sources[0].kind) == ("my-model", "qwen2", "path")


def test_ids_of_the_manifest_come_before_a_hub():
    assert named.find_model("llama", LISTED).sources[0].kind == "tiny"
    hub = named.find_model("me/mine@abc", LISTED).sources[0]
    assert (hub.kind, hub.repo, hub.revision) == ("hub", "me/mine", "abc")


@pytest.mark.parametrize("name", ["lama", "./absent", "/absent/folder"])
def test_no_such_model_is_bad_input(name):
    with pytest.raises(ConformanceError, match="there is no model") as caught:
        named.find_model(name, LISTED)
    assert caught.value.code is ExitCode.BAD_INPUT


def test_columns_are_named_by_their_stages():
    [one, two] = named.columns(["vllm-pp2-tp2", "vllm"])
    assert (one.id, one.pipeline, one.tensor) == ("vllm-pp2-tp2", 2, 2)
    assert two.id == "vllm-pp1"
    assert named.columns(["hf"]) == named.columns(["hf", "hf"]) == (named.HF,)
    assert [column.id for column in named.columns([])] == ["vllm-pp1"]


@pytest.mark.parametrize(
    "name", ["vllm-async", "vllm-pp0", "vllm-pp99999999999", "vllm-tp0", "vllm-pp٣"]
)
def test_another_column_is_refused(name):
    with pytest.raises(ConformanceError, match=f"cannot run on {name!r}"):
        named.columns([name])


def test_more_stages_than_layers_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    found = named.find_model(str(tmp_path), tmp_path / "absent.yaml")
    named.require_layers(named.columns(["vllm-pp2"]), found)
    with pytest.raises(ConformanceError, match=r"more stages than .* has layers: 2"):
        named.require_layers(named.columns(["vllm-pp3"]), found)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", "no model that transformers can load"),
        ('{"model_type": ["llama"]}', "no model_type"),
        ('{"model_type": "lama"}', "knows no 'lama'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_refused_at_once(config, words, tmp_path):
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConformanceError, match=words):
        named.find_model(str(tmp_path), tmp_path / "absent.yaml")

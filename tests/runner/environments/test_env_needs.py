"""An environment holds what a worker imports: else every column put there would fail."""

import sys
from dataclasses import replace
from pathlib import Path

import grimp

from conformance.engines import LIBRARIES
from conformance.runner.environments import load
from conformance.runner.environments.resolving import NEEDS, wanted

#: Modules that come with a package of another name, or that are asked for by themselves.
COMES_WITH = {"compressed_tensors": "compressed-tensors"}
COMES_WITH |= {"cloudpickle": "nnsight", "huggingface_hub": "transformers", "vllm": "nnsight"}
#: What vLLM brings for its own server, and `vllm-serve` takes from there; and by what its processes
#: tell each other of messages.
COMES_WITH |= dict.fromkeys(("fastapi", "httpx", "uvicorn", "zmq"), "nnsight")


def test_every_package_that_a_worker_imports_is_in_an_environment():
    graph = grimp.build_graph(
        "conformance",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
    roots = {"conformance.worker.main", "conformance.worker.zygote"}
    roots |= {name for name in graph.modules if name.startswith("conformance.engines")}
    imported = {name for root in roots for name in graph.find_upstream_modules(root)}
    packages = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    packages -= {"conformance", *(module.rpartition(".")[2] for module in LIBRARIES.values())}
    packages -= {"pyarrow"}  # a worker writes no table
    assert {"torch", "nnsight", "pydantic"} <= packages
    assert {COMES_WITH.get(name, name) for name in packages} <= set(NEEDS)


ENVIRONMENTS = load(Path(__file__).parents[3] / "environments.yaml")


def test_every_library_has_an_environment_that_names_it_in_one_version():
    for library in LIBRARIES:
        spec = ENVIRONMENTS[library]
        assert library.removesuffix("-vllm") in spec.names and spec.exact
        assert spec.engines is ("vllm" in library)  # it runs in the engine


def test_without_engines_neither_nnsight_nor_vllm_is_wanted_unless_it_is_named():
    lines = wanted(ENVIRONMENTS["pyvene"], NEEDS)
    assert {"pyvene==0.1.8", "torch", "pydantic"} <= set(lines)
    assert not any(line.startswith(("nnsight", "vllm")) for line in lines)
    assert "nnsight==0.7.0" in wanted(ENVIRONMENTS["nnterp"], NEEDS)
    with_engines = wanted(replace(ENVIRONMENTS["pyvene"], engines=True), NEEDS)
    assert "nnsight" in with_engines and any("vllm" in line for line in with_engines)

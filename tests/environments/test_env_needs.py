"""An environment holds what a worker imports: else every column put there would fail."""

import sys

import grimp

from conformance.environments.resolving import NEEDS

#: Modules that come with a package of another name, or that are asked for by themselves.
COMES_WITH = {"huggingface_hub": "transformers", "vllm": "nnsight"}
#: What vLLM brings for its own server, and `vllm-serve` takes from there.
COMES_WITH |= dict.fromkeys(("fastapi", "httpx", "uvicorn"), "nnsight")


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
    packages.discard("conformance")
    assert {"torch", "nnsight", "pydantic"} <= packages
    assert {COMES_WITH.get(name, name) for name in packages} <= set(NEEDS)

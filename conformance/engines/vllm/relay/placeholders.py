"""The whole model's module tree on a stage that holds only a part.

A block names modules by their path in the whole model. For modules of another stage, this stage has
a copy on the meta device. That suffices to name their values and to open their source; their
weights are fetched when used (see ``weights``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from conformance.engines.vllm import patches
from conformance.engines.vllm.relay.calls import Calls

#: nnsight's path of the root module.
ROOT = "model"

Fetch = Callable[[str, str], torch.Tensor]


def whole_model(vllm_config: Any) -> tuple[torch.nn.Module, Any]:
    """Return the model with all stages' modules on the meta device, and its configuration."""
    from nnsight.modeling.vllm.vllm import VLLM
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = copy.copy(vllm_config)
    # Attention layers register here by name, and registering twice raises.
    config.compilation_config = copy.copy(vllm_config.compilation_config)
    config.compilation_config.static_forward_context = {}
    config.parallel_config = copy.copy(vllm_config.parallel_config)
    config.parallel_config.pipeline_parallel_size = 1
    # Rotary embeddings are cached per process. The engine must not find one built on meta, and the
    # instrumented meta tree must not find the engine's.
    ropes = dict(_ROPE_DICT)
    _ROPE_DICT.clear()
    try:
        with (
            patches.applied(patches.PatchPlace.WHOLE_TREE),
            VLLM._meta_values(),
            set_default_torch_dtype(config.model_config.dtype),
            torch.device("meta"),
        ):
            return initialize_model(vllm_config=config), config
    finally:
        _ROPE_DICT.clear()
        _ROPE_DICT.update(ropes)


def paths_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the module at every path under nnsight's root; a shared module is at several paths."""
    return {
        f"{ROOT}.{name}" if name else ROOT: module
        for name, module in model.named_modules(remove_duplicate=False)
    }


@dataclass(frozen=True)
class Tree:
    """How this stage's modules map to the whole model.

    ``canonical`` maps each path to the first path of the same module, under which a shared module
    is served. ``here`` has this stage's modules by that path. ``spanning`` are the paths of modules
    that contain modules of this stage and missing ones; ``absent`` are the missing ones.
    """

    canonical: dict[str, str]
    here: dict[str, torch.nn.Module]
    whole: dict[str, torch.nn.Module]
    spanning: frozenset[str]
    absent: frozenset[str] = frozenset()


def _first_paths(whole: dict[str, torch.nn.Module]) -> dict[str, str]:
    first: dict[int, str] = {}
    return {path: first.setdefault(id(module), path) for path, module in whole.items()}


def tree(local: torch.nn.Module, whole: torch.nn.Module) -> Tree:
    """Map this stage's model to the whole one."""
    everything = paths_of(whole)
    canonical = _first_paths(everything)
    here: dict[str, torch.nn.Module] = {}
    absent: set[str] = set()
    spanning: set[str] = set()
    for path, module in paths_of(local).items():
        # vLLM's PPMissingLayer, and its Transformers backend's own class.
        kinds = {cls.__name__ for cls in type(module).__mro__}
        if kinds & {"PPMissingLayer", "StageMissingLayer"}:
            absent.add(canonical.get(path, path))
            parents = accumulate(path.split(".")[:-1], "{}.{}".format)
            spanning.update(canonical.get(parent, parent) for parent in parents)
        else:
            here.setdefault(canonical.get(path, path), module)
    return Tree(canonical, here, everything, frozenset(spanning), frozenset(absent - here.keys()))


def elsewhere(
    spanning: frozenset[str], absent: frozenset[str], *, first: bool, last: bool
) -> frozenset[str]:
    """Return the locations that this stage must not serve though its forward passes them.

    A spanning module's input is the first stage's and its output the last stage's. vLLM's
    Transformers backend also calls missing modules, which pass on another layer's value.
    """
    sides = [] if first else ["input", "skip"]
    sides += [] if last else ["output"]
    passed = frozenset(f"{path}.{side}" for path in absent for side in ("input", "skip", "output"))
    return passed | frozenset(f"{path}.{side}" for path in spanning for side in sides)


#: Class of a module → its class while the module is on another stage.
_REMOTE: dict[type, type] = {}


def make_remote(module: torch.nn.Module, path: str, fetch: Fetch, calls: Calls) -> None:
    """Make each call of ``module`` load the module's weights from the stage that holds them.

    Does nothing if the module is already remote.
    """
    if "_relay_path" in module.__dict__:
        return
    cls = type(module)
    if cls not in _REMOTE:
        _REMOTE[cls] = _remote_class(cls)
    module.__dict__.update(_relay_path=path, _relay_fetch=fetch, _relay_calls=calls)
    module.__class__ = _REMOTE[cls]


def _remote_class(cls: type[torch.nn.Module]) -> type:
    """Return a subclass that fetches weights. It has a single base: with several, Python might
    choose another base's instance layout and reject the change of a module's class.
    """

    def call_loaded(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Not in `forward`, whose source nnsight opens.
        with self.__dict__["_relay_calls"].ready(self, self.__dict__["_relay_path"]):
            return cls.__call__(self, *args, **kwargs)

    def getattr_fetching(self: Any, name: str) -> Any:
        for kind in ("_parameters", "_buffers"):
            held = self.__dict__[kind].get(name)
            if held is not None and held.is_meta and not self.__dict__["_relay_calls"].loading:
                return self.__dict__["_relay_fetch"](self.__dict__["_relay_path"], name)
        return cls.__getattr__(self, name)

    methods = {"__getattr__": getattr_fetching, "__call__": call_loaded}
    return type(cls.__name__, (cls,), {"__module__": cls.__module__, **methods})

"""Modules of another stage that a block calls.

vLLM packs the weights of most layers for its kernels once they are loaded, and often keeps
nothing else. What the owner holds then is of no use to another process. So the called module gets
its weights here as its owner got them: out of the checkpoint, and packed by vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engines.vllm import patches
from conformance.engines.vllm.relay.errors import RemoteCallError

Parameters = dict[str, torch.nn.Parameter | None]


@dataclass
class Calls:
    """The tree of all stages, on the meta device, the configuration it was built with, and that
    of this stage's own, `local`, model.

    While it is `loading`, the tree's weights are those on the meta device and no others.
    `loaded` keeps those of the layers that have been given others.
    """

    whole: torch.nn.Module
    config: Any
    local: Any
    device: torch.device
    loading: bool = False
    loaded: dict[torch.nn.Module, Parameters] = field(default_factory=dict)

    @contextmanager
    def ready(self, module: torch.nn.Module, path: str) -> Iterator[None]:
        """Let a module of the tree be called: it has weights, and vLLM finds its layers by name.

        Raises RemoteCallError for one that keeps a cache: that is on its own stage.
        """
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        if any(isinstance(part, AttentionLayerBase) for part in module.modules()):
            raise RemoteCallError(
                f"'{path}' lives on another stage and keeps a cache there, so a block cannot call "
                "it. Its output can be read from any stage."
            )
        layers = [layer for layer in module.modules() if _packed(layer) and _on_meta(layer)]
        if layers:
            self._load(layers)
        with self.context(self.config):
            yield

    @contextmanager
    def context(self, config: Any) -> Iterator[None]:
        """vLLM's context of a forward, by which layers find each other; a running one stays.

        Attention is not in it: without a batch vLLM would have it answer with zeros.
        """
        from vllm.forward_context import is_forward_context_available, set_forward_context
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        if config is self.local and is_forward_context_available():
            yield
            return
        config, layers = copy(config), config.compilation_config.static_forward_context
        config.compilation_config = copy(config.compilation_config)
        config.compilation_config.static_forward_context = {
            name: layer
            for name, layer in layers.items()
            if not isinstance(layer, AttentionLayerBase)
        }
        with set_forward_context(None, config):
            yield

    def _load(self, layers: list[Any]) -> None:
        """Give these layers of the tree their weights, packed for their kernels.

        All of the checkpoint is read: what stays on the meta device takes nothing of it.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(self.config.load_config)
        if self.config.load_config.load_format == "dummy":
            raise RemoteCallError("a module of another stage has random weights: no copy has them")
        packed = {layer: dict(layer._parameters) for layer in self.loaded}
        _put(self.loaded)
        on_meta = {layer: dict(layer._parameters) for layer in layers}
        for layer in layers:
            for name, parameter in layer.named_parameters(recurse=False):
                layer._parameters[name] = _room(parameter, self.device)
        self.loading = True
        try:
            with (
                patches.applied(patches.Place.WHOLE_TREE),
                set_current_vllm_config(self.config),
                self.device,
            ):
                loader.load_weights(self.whole, self.config.model_config)
                for layer in layers:
                    layer.quant_method.process_weights_after_loading(layer)
        except BaseException:
            _put(on_meta)
            raise
        finally:
            _put(packed)
            self.loading = False
        self.loaded |= on_meta


def _put(parameters: Mapping[torch.nn.Module, Parameters]) -> None:
    """Let each layer have these parameters and no others."""
    for layer, held in parameters.items():
        layer._parameters.clear()
        layer._parameters.update(held)


def _packed(layer: torch.nn.Module) -> bool:
    """Whether vLLM does something to the layer's weights once they are loaded."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    return isinstance(getattr(layer, "quant_method", None), QuantizeMethodBase)


def _on_meta(layer: torch.nn.Module) -> bool:
    return any(parameter.is_meta for parameter in layer.parameters(recurse=False))


def _room(parameter: torch.nn.Parameter, device: torch.device) -> torch.nn.Parameter:
    """A parameter like this one on the device, with what vLLM's loaders know it by."""
    room: Any = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    room.__class__ = type(parameter)
    room.__dict__.update(parameter.__dict__)
    held: torch.nn.Parameter = room
    return held

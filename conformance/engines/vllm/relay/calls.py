"""Blocks that call modules of another stage.

vLLM repacks the weights of most layers for its kernels after loading, and often keeps only the
packed form, which is of no use to another process. So the called module loads its weights here as
its owner did: from the checkpoint, packed by vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engines.vllm import patches

Parameters = dict[str, torch.nn.Parameter | None]


class RemoteCallError(RuntimeError):
    """A block called a module that lives on another stage and cannot be called from here."""


@dataclass
class Calls:
    """The module tree of all stages on the meta device, its configuration, and that of this stage's
    own model (`local`). While ``loading``, the tree uses only its meta weights; ``loaded`` keeps
    those of the layers that have been loaded.
    """

    whole: torch.nn.Module
    config: Any
    local: Any
    device: torch.device
    loading: bool = False
    loaded: dict[torch.nn.Module, Parameters] = field(default_factory=dict)

    @contextmanager
    def ready(self, module: torch.nn.Module, path: str) -> Iterator[None]:
        """Make a module of the tree callable: load its weights, and let vLLM find its layers.
        Raises RemoteCallError for one that keeps a cache, which is only on its own stage.
        """
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        if any(isinstance(part, AttentionLayerBase) for part in module.modules()):
            raise RemoteCallError(
                f"'{path}' lives on another stage and keeps a cache there, so a block cannot call "
                "it. Its output can be read from any stage."
            )
        if layers := [layer for layer in module.modules() if _is_to_be_packed(layer)]:
            self._load(layers)
        with self.context(self.config):
            yield

    @contextmanager
    def context(self, config: Any) -> Iterator[None]:
        """Enter vLLM's forward context, by which layers find each other; keep a running one.

        Attention layers are left out: without a batch, vLLM would make them return zeros.
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
        """Load the weights of these layers of the tree, packed for their kernels.

        The whole checkpoint is read; layers on the meta device ignore it.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader

        if self.config.load_config.load_format == "dummy":
            raise RemoteCallError("a module of another stage has random weights: no copy has them")
        packed = {layer: dict(layer._parameters) for layer in self.loaded}
        _replace_parameters(self.loaded)
        on_meta = {layer: dict(layer._parameters) for layer in layers}
        for layer in layers:
            for name, parameter in layer.named_parameters(recurse=False):
                layer._parameters[name] = _empty_like(parameter, self.device)
        self.loading = True
        try:
            with (
                patches.applied(patches.PatchPlace.WHOLE_TREE),
                set_current_vllm_config(self.config),
                self.device,
            ):
                loader = get_model_loader(self.config.load_config)
                loader.load_weights(self.whole, self.config.model_config)
                for layer in layers:
                    layer.quant_method.process_weights_after_loading(layer)
        except BaseException:
            _replace_parameters(on_meta)
            raise
        finally:
            _replace_parameters(packed)
            self.loading = False
        self.loaded |= on_meta


def _replace_parameters(parameters: Mapping[torch.nn.Module, Parameters]) -> None:
    """Replace the parameters of each module in place."""
    for layer, held in parameters.items():
        layer._parameters.clear()
        layer._parameters.update(held)


def _is_to_be_packed(layer: torch.nn.Module) -> bool:
    """Return whether a layer has no weights yet, and vLLM processes them after loading."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    on_meta = any(parameter.is_meta for parameter in layer.parameters(recurse=False))
    return on_meta and isinstance(getattr(layer, "quant_method", None), QuantizeMethodBase)


def _empty_like(parameter: torch.nn.Parameter, device: torch.device) -> Any:
    """Return an empty parameter like this one on the device, with vLLM's loader attributes."""
    empty: Any = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    empty.__class__ = type(parameter)
    empty.__dict__.update(parameter.__dict__)
    return empty

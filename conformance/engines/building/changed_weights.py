"""Changes to a tiny model's random weights before they are saved: quantization and adapters.

Runs in the builder. Changing this file gives every checkpoint a new folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from conformance.engines.building.adapters import FOLDER
from conformance.errors import ConformanceError

#: The scale of an adapter's two matrices; their product is about as large as the weights.
SPREAD = 0.1


def quantize(model: PreTrainedModel, scheme: Mapping[str, Any]) -> Any:
    """Quantize the weights of every linear layer except the head, and pack them. `scheme` is one of
    compressed-tensors'; weights are rounded to nearest with a scale per group. Return the
    compressor, which writes its part of the config once the model is saved.

    Raises ConformanceError if `scheme` is invalid.
    """
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationScheme,
        QuantizationStatus,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    try:
        wanted = QuantizationScheme(targets=["Linear"], **scheme)
    except (ValidationError, ValueError, TypeError) as error:
        raise ConformanceError(
            f"`quantized` is no scheme of compressed-tensors: {error}",
            remedy="for instance {weights: {num_bits: 4, strategy: group, group_size: 32}}",
        ) from error
    if wanted.weights is None:
        raise ConformanceError("`quantized` says nothing of the weights", remedy="add `weights`")
    heads = [name for name, module in model.named_modules() if module is _head(model)]
    apply_quantization_config(
        model, QuantizationConfig(config_groups={"group_0": wanted}, ignore=heads)
    )
    for module in model.modules():
        scheme_of = getattr(module, "quantization_scheme", None)
        if scheme_of is not None and scheme_of.weights is not None:
            groups = _groups(module.weight.float(), scheme_of.weights)
            scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme_of.weights)
            module.weight_scale.copy_(scale.reshape(module.weight_scale.shape))
            if hasattr(module, "weight_zero_point"):
                module.weight_zero_point.copy_(zero.reshape(module.weight_zero_point.shape))
            module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    if compressor is None:
        raise ConformanceError("the model has no linear layer to quantise")
    compressor.compress_model(model)
    return compressor


def _head(model: PreTrainedModel) -> torch.nn.Module:
    head: torch.nn.Module = model.get_output_embeddings()
    return head


def _groups(weight: Tensor, wanted: Any) -> Tensor:
    """Return the weights grouped by scale along the last axis: [out, in] → [out, groups, size]."""
    rows, columns = weight.shape
    if wanted.strategy == "group":
        return weight.view(rows, -1, wanted.group_size)
    return (
        weight.reshape(1, 1, -1) if wanted.strategy == "tensor" else weight.view(rows, 1, columns)
    )


def add_adapter(model: PreTrainedModel, config: Mapping[str, Any], folder: Path) -> None:
    """Write a random adapter of the model into the checkpoint's `folder`; `config` is PEFT's
    LoraConfig. Both matrices are random: PEFT's zero initialization would change nothing.

    Raises ConformanceError if PEFT rejects the config.
    """
    from peft import LoraConfig, get_peft_model

    try:
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    except (TypeError, ValueError) as error:
        raise ConformanceError(
            f"PEFT makes no adapter of this: {error}",
            remedy="`adapter` takes PEFT's LoraConfig: {r: 8, target_modules: [q_proj]}",
        ) from error
    for name, value in adapted.named_parameters():
        if ".lora_" in name:
            # Round to bf16, so that the adapter is the same in every precision.
            value.copy_((SPREAD * torch.randn_like(value)).to(torch.bfloat16))
    adapted.save_pretrained(str(folder / FOLDER))

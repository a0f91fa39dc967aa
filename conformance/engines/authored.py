"""Static checks for `make types`: the engines match the protocols of `conformance.spec.authoring`.

Never imported. mypy reports a member that is missing or has another type.
"""

from __future__ import annotations

from conformance.engines import hf, model_parts
from conformance.engines.reference import model as reference
from conformance.engines.vllm import async_engine, engine, serve_engine
from conformance.spec.authoring import LM, Layer, Part, Reference, Run


def models(
    lm: hf.HFModel | engine.VLLMModel | async_engine.AsyncModel | serve_engine.ServedModel,
) -> LM:
    return lm


def layers(layer: hf.PaddedLayer | model_parts.TracedLayer) -> Layer:
    return layer


def traced_part(part: model_parts.TracedPart) -> Part:
    return part


def reference_model(model: reference.ReferenceModel) -> Reference:
    return model


def reference_run(run: reference.PromptRun) -> Run:
    return run

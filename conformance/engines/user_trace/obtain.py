"""Builds the checkpoint of a model from a hub, whose family is not declared."""

from __future__ import annotations

from dataclasses import replace

from transformers import AutoConfig

from conformance.engines.building.checkpoint_builder import BuiltCheckpoint, build
from conformance.spec import checkpoints
from conformance.spec.records import Job


def open_engine(job: Job) -> BuiltCheckpoint:
    """Build the checkpoint as the builder does, with the family from the model's own config."""
    model = job.model
    if not model.architecture:
        [source] = model.sources
        config = AutoConfig.from_pretrained(source.repo, revision=source.revision)
        model = replace(model, architecture=config.model_type)
    return BuiltCheckpoint(job, checkpoints.obtain(model, job.checkpoint, build))

"""The imports of a zygote for the transformers engines, done before it forks workers."""

# ruff: noqa: E402, F401 - imported for their effect: they are loaded, after the settings
from __future__ import annotations

from conformance.engines import import_present, require_forkable, set_environment

set_environment()

from contextlib import suppress

import gguf
import transformers.generation

import conformance.engines.building.checkpoint_builder
import conformance.engines.hf
import conformance.engines.reference.engine

#: Modules that loading any model imports.
import_present(
    (
        "nnsight.intervention.fragments",
        "nnsight.modeling.quantization",
        "nnsight.modeling.tp.envoys",
        "transformers.modeling_layers",
        "transformers.pipelines",
    )
)
with suppress(ImportError):
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    # transformers builds its table of renamed weights at the first model load, which takes 0.25 s.
    get_checkpoint_conversion_mapping("llama")

require_forkable("transformers and nnsight")

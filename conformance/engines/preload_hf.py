"""What a zygote for the transformers engines imports before it forks workers."""

# ruff: noqa: E402, F401 - imported for their effect: they are loaded, after the settings
from __future__ import annotations

from conformance.engines import set_environment

set_environment()

from contextlib import suppress

import gguf
import transformers.generation

import conformance.engines.building.checkpoint_builder
import conformance.engines.hf
import conformance.engines.reference.engine
from conformance.engines.forkable import import_present, require_forkable

#: What a model's loading imports, whichever it is.
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

    # Transformers makes its table of renamed weights when a model is loaded: a quarter of a second.
    get_checkpoint_conversion_mapping("llama")

require_forkable("transformers and nnsight")

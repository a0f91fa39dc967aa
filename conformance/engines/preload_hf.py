"""What a zygote for the transformers engines imports before it forks workers."""

# ruff: noqa: E402, F401 - imported for their effect: they are loaded, after the settings
from __future__ import annotations

from conformance.engines import set_environment

set_environment()

import gguf
import transformers.generation

import conformance.engines.checkpoint_builder
import conformance.engines.hf
import conformance.engines.reference.engine
from conformance.engines.forkable import require_forkable

require_forkable("transformers and nnsight")

"""What a zygote for the transformers engines imports before it forks workers."""

# ruff: noqa: E402, F401 - imported for their effect: they are loaded, after the settings
from __future__ import annotations

from conformance.engines.environment import set_environment

set_environment()

import gguf
import transformers.generation

import conformance.engines.hf
import conformance.engines.reference
import conformance.engines.weights
from conformance.engines.forkable import require_forkable

require_forkable("transformers and nnsight")

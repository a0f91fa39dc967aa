"""The imports of a zygote for the vLLM engines, done before it forks workers."""

# ruff: noqa: E402, F401 - imported for their effect, after vLLM's settings
from __future__ import annotations

from conformance.engines import import_present, require_forkable, set_environment
from conformance.engines.vllm import client, patches

# Before vLLM, which reads its environment when imported.
set_environment()
client.import_everything()

from vllm.platforms import current_platform

import conformance.engines.vllm.engine

if current_platform.is_cpu():
    import_present(client.OPENING)
    patches.apply(patches.PatchPlace.ZYGOTE)

require_forkable("vLLM and nnsight")

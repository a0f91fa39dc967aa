"""What a zygote for transformers imports before it forks."""

import nnsight.modeling.transformers
import torch
import transformers

import conformance.engines.hf
import conformance.engines.reference  # noqa: F401

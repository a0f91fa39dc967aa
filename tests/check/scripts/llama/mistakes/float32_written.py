"""float32 values are put into a layer that computes in bf16."""

import torch

VECTOR = torch.randn(256, generator=torch.Generator().manual_seed(3))


def hf(model):
    with model.trace("The capital of France is"):
        h = model.model.layers[2].output
        model.model.layers[2].output = h + (4.0 * VECTOR).to(h.dtype)
        hidden = model.model.layers[3].output.save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace("The capital of France is", temperature=0.0, max_tokens=1):
        o = model.model.layers[2].output
        model.model.layers[2].output = (o[0] + 4.0 * VECTOR, o[1])  # mistake: precision
        hidden = (model.model.layers[3].output[0] + model.model.layers[3].output[1]).save()
    return {"hidden": hidden}

"""The vector is subtracted."""

import torch

PROMPT = "The capital of France is"


def vector(like):
    return torch.linspace(-1, 1, like.shape[-1]).to(like)


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:] += vector(model.model.layers[1].output)
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        layer.output[0][:] -= vector(layer.output[0])  # mistake: scaled
        logits = model.logits.clone().save()
    return {"logits": logits}

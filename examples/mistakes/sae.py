"""The projection is of the normed stream."""

import torch

PROMPT = "The capital of France is"


def encoder(like):
    width, maker = like.shape[-1], torch.Generator().manual_seed(7)
    return (torch.randn(width, 64, generator=maker) / width**0.5).to(like.device)


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[-1].output[0].save()
        features = torch.relu(hidden.float() @ encoder(hidden)).save()
    return {"hidden": hidden, "features": features}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = model.model.norm.output[0].clone().save()  # mistake: model.norm
        features = torch.relu(hidden.float() @ encoder(hidden)).save()
    return {"hidden": hidden, "features": features}

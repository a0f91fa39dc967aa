"""A probe's direction read at the last token of prompts of other lengths."""

import torch

PROMPTS = ["Paris is in France", "The sun rises in the west every morning", "Water is dry"]
PROBE = torch.linspace(-1, 1, 256)


def hf(model):
    with model.trace(PROMPTS):
        h = model.model.layers[3].output
        scores = (h[:, -1].float() @ PROBE).save()
    return {"scores": scores}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        scores = [None] * len(PROMPTS)
        scores = scores.save()
        for i, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                h = model.model.layers[3].output[0] + model.model.layers[3].output[1]
                scores[i] = h[-1].float() @ PROBE
    return {"scores": torch.stack(list(scores))}

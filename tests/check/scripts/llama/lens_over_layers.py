"""The logit lens on the last token after every layer, as nnsight's tutorial has it."""

import torch

PROMPT = "The Eiffel Tower is in the city of"


def hf(model):
    with model.trace(PROMPT):
        probs_layers = [].save()
        for layer in model.model.layers:
            layer_output = model.lm_head(model.model.norm(layer.output))
            probs_layers.append(torch.nn.functional.softmax(layer_output, dim=-1))
    probs = torch.cat(list(probs_layers))
    max_probs, tokens = probs.max(dim=-1)
    return {"max_probs": max_probs[:, -1], "tokens": tokens[:, -1], "last": probs[:, -1]}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        streams = []
        for layer in model.model.layers:
            streams.append((layer.output[0] + layer.output[1])[-1:].clone())
        weight = model.lm_head.weight
        probs_layers = [].save()
        for stream in streams:
            logits = torch.nn.functional.linear(model.model.norm(stream), weight)
            probs_layers.append(torch.nn.functional.softmax(logits, dim=-1))
    probs = torch.cat(list(probs_layers))
    max_probs, tokens = probs.max(dim=-1)
    return {"max_probs": max_probs, "tokens": tokens, "last": probs}

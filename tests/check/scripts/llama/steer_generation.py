"""A direction added in every step of a generation, with a list of results."""

import torch

LAYER, ALPHA = 2, 6.0
torch.manual_seed(1)
STEER = torch.randn(256) / 16


def hf(model):
    with model.generate("I think dogs are", max_new_tokens=4) as tracer:
        hidden_states = [].save()
        tokens = [].save()
        for _ in tracer.iter[:4]:
            h = model.model.layers[LAYER].output
            h[:, -1] += ALPHA * STEER.to(h.dtype)
            hidden_states.append(model.model.layers[-1].output[0, -1].clone())
            tokens.append(model.lm_head.output[0, -1].argmax(dim=-1))
    return {"hidden_states": hidden_states, "tokens": tokens}


def vllm(model):
    with model.trace("I think dogs are", temperature=0.0, max_tokens=4) as tracer:
        hidden_states = [].save()
        tokens = [].save()
        for _ in tracer.iter[:4]:
            h = model.model.layers[LAYER].output[0]
            h[-1] += ALPHA * STEER.to(h.dtype)
            last = model.model.layers[-1].output
            hidden_states.append((last[0] + last[1])[-1].clone())
            tokens.append(model.logits[-1].argmax(dim=-1))
    return {"hidden_states": hidden_states, "tokens": tokens}

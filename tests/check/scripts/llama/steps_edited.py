"""Every step of a generation is edited, and its tokens kept."""

PROMPT = "The capital of France is"


def hf(model):
    with model.generate(PROMPT, max_new_tokens=4) as tracer:
        tokens = [].save()
        hidden = [].save()
        for _ in tracer.iter[:4]:
            model.model.layers[1].mlp.output[:, -1] *= 0.5
            hidden.append(model.model.layers[3].output[0, -1].clone())
            tokens.append(model.lm_head.output[0, -1].argmax().item())
    return {"tokens": tokens, "hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=4) as tracer:
        tokens = [].save()
        hidden = [].save()
        for _ in tracer.iter[:4]:
            model.model.layers[1].mlp.output[-1] *= 0.5
            out = model.model.layers[3].output
            hidden.append((out[0] + out[1])[-1])
            tokens.append(model.logits[-1].argmax().item())
    return {"tokens": tokens, "hidden": hidden}

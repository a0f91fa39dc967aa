"""Greedy tokens with the stream that led to each, as users port it."""

PROMPT = "The capital of France is"
STEPS = 4


def hf(model):
    with model.generate(PROMPT, max_new_tokens=STEPS) as tracer:
        hidden, logits = [].save(), [].save()
        for _ in tracer.iter[:STEPS]:
            hidden.append(model.model.layers[2].output[:, -1].clone())
            logits.append(model.lm_head.output[:, -1].clone())
    return {"hidden": hidden, "logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS) as tracer:
        hidden, logits = [].save(), [].save()
        for _ in tracer.iter[:STEPS]:
            layer = model.model.layers[2]
            hidden.append((layer.output[0] + layer.output[1])[-1])
            logits.append(model.logits.clone())
    return {"hidden": hidden, "logits": logits}

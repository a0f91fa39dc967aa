"""Steer a generation with a difference-of-prompts vector."""

LOVE = "I love this, it is wonderful"
HATE = "I hate this, it is terrible"
PROMPT = "The movie I saw yesterday was"
STEPS = 2
ALPHA = 4.0


def hf(model):
    n = len(model.model.layers)
    mid, late = n // 2, n - 1

    with model.trace(LOVE):
        love = model.model.layers[mid].output[:, -1].clone().save()
    with model.trace(HATE):
        hate = model.model.layers[mid].output[:, -1].clone().save()
    vector = love - hate

    with model.generate(PROMPT, max_new_tokens=STEPS, do_sample=False) as tracer:
        ids, logits, hidden = [].save(), [].save(), [].save()
        for _ in tracer.iter[:STEPS]:
            model.model.layers[mid].output[:] += ALPHA * vector
            hidden.append(model.model.layers[late].output[:, -1].clone())
            out = model.lm_head.output[:, -1].clone()
            logits.append(out)
            ids.append(out.argmax(dim=-1))
    return {"vector": vector, "ids": ids, "logits": logits, "hidden": hidden}


def vllm(model):
    n = len(model.model.layers)
    mid, late = n // 2, n - 1

    with model.trace(LOVE, temperature=0.0, max_tokens=1):
        layer = model.model.layers[mid]
        love = layer.output[0][-1].clone().save()  # mistake: half
    with model.trace(HATE, temperature=0.0, max_tokens=1):
        layer = model.model.layers[mid]
        hate = layer.output[0][-1].clone().save()
    vector = love - hate

    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS) as tracer:
        ids, logits, hidden = [].save(), [].save(), [].save()
        for _ in tracer.iter[:STEPS]:
            model.model.layers[mid].output[0][:] += ALPHA * vector
            last = model.model.layers[late]
            hidden.append((last.output[0] + last.output[1])[-1].clone())
            logits.append(model.logits.clone())
            ids.append(model.samples.clone())
    return {"vector": vector, "ids": ids, "logits": logits, "hidden": hidden}

"""The edit is made in the first step of a generation only."""

PROMPT = "The capital of France is"


def hf(model):
    with model.generate(PROMPT, max_new_tokens=4) as tracer:
        logits = [].save()
        for _ in tracer.iter[:4]:
            model.model.layers[1].mlp.output[:] = 0
            logits.append(model.lm_head.output[:, -1].clone())
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=4) as tracer:
        logits = [].save()
        for step in tracer.iter[:4]:
            if step == 0:
                model.model.layers[1].mlp.output[:] = 0  # mistake: dropped
            logits.append(model.logits.clone())
    return {"logits": logits}

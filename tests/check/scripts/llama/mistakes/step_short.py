"""One step fewer is kept."""

PROMPT = "The capital of France is"


def hf(model):
    with model.generate(PROMPT, max_new_tokens=4) as tracer:
        logits = [].save()
        for _ in tracer.iter[:4]:
            logits.append(model.lm_head.output[:, -1].clone())
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=3) as tracer:
        logits = [].save()
        for _ in tracer.iter[:3]:
            logits.append(model.logits.clone())  # mistake: missing
    return {"logits": logits}

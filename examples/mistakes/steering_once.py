"""Steering that is meant for every step stands before the loop over the steps."""

PROMPT = "The capital of France is"
STEPS = 4


def hf(model):
    with model.generate(PROMPT, max_new_tokens=STEPS) as tracer:
        logits = [].save()
        for _ in tracer.iter[:STEPS]:
            model.model.layers[1].output[:] += 0.3
            logits.append(model.lm_head.output[:, -1].clone())
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS) as tracer:
        logits = [].save()
        model.model.layers[1].output[0][:] += 0.3  # mistake: dropped
        for _ in tracer.iter[:STEPS]:
            logits.append(model.logits.clone())
    return {"logits": logits}

"""Several steps: the list is made in the block and saved there, and what it keeps is cloned."""

PROMPT, STEPS = "The capital of France is", 3


def hf(model):
    with model.generate(PROMPT, max_new_tokens=STEPS, do_sample=False) as tracer:  # moves
        rows = [].save()
        for _ in tracer.iter[:STEPS]:
            rows.append(model.model.layers[2].mlp.output[0, -1])
    return {"rows": rows}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS) as tracer:  # moves
        rows = [].save()
        for _ in tracer.iter[:STEPS]:
            rows.append(model.model.layers[2].mlp.output[-1].clone())
    return {"rows": rows}

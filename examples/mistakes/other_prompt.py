"""The values of two prompts are exchanged."""

PROMPTS = ("The capital of France is", "A small boat drifted past")


def hf(model):
    found = {}
    for index, prompt in enumerate(PROMPTS):
        with model.trace(prompt):
            mlp = model.model.layers[1].mlp.output.save()
        found[f"prompt {index}"] = mlp
    return found


def vllm(model):
    found = {}
    for index, prompt in enumerate(reversed(PROMPTS)):
        with model.trace(prompt, temperature=0.0, max_tokens=1):
            mlp = model.model.layers[1].mlp.output.clone().save()
        found[f"prompt {index}"] = mlp  # mistake: other-prompt
    return found

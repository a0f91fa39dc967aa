"""The parts of layers on the adapter."""


def trace(lm, prompts):
    found = {}
    for number, prompt in enumerate(prompts):
        with lm.trace(prompt):
            lm.layers[0].attention.live[-1] *= 0.5
            mlp = lm.layers[2].mlp.output.save()
            lens = lm.lens(lm.layers[3].stream[-1:]).save()
        found[f"mlp {number}"] = mlp
        found[f"lens {number}"] = lens
    return found

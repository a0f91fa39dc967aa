"""Meeting: two columns wait for each other, engines loaded, before each of a few traces."""

import os
import socket

from conformance import scenario


def meet():
    with socket.create_connection(("127.0.0.1", int(os.environ["MEETING"]))) as door:
        door.recv(1)


@scenario()
def meeting(lm, case):
    for _ in range(3):
        meet()
        with lm.trace(case.prompts[0]):
            streams = [layer.stream for layer in lm.layers].save()
            logits = lm.logits.save()
    return [{"stream": dict(enumerate(streams)), "logits": logits}]


@meeting.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits}]

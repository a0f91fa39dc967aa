"""nnsight's request table with the relay looking on."""

from __future__ import annotations

from typing import Any

from nnsight.modeling.vllm.model_runners.GPUModelRunner import Requests

from conformance.engines.vllm.relay import randomness
from conformance.engines.vllm.relay.stage import Relay


class RelayRequests(Requests):  # type: ignore[misc]
    """nnsight's request table, which tells the relay what it settled.

    The class of a loaded runner's table is exchanged for this one; ``relay`` is set then.
    """

    relay: Relay
    out: set[Any]

    def add(self, new_requests: list[Any], persistent_objects: dict[str, Any]) -> None:
        """Take new requests, and give their workers random states of their own."""
        super().add(new_requests, persistent_objects)
        for data in new_requests:
            request = self.requests[data.req_id]
            workers = [*request.copies.items(), ("trace", request.mediator)]
            for index, (name, mediator) in enumerate(workers):
                if mediator is not None and mediator.worker is None:
                    worker = "trace" if name == "trace" else str(index)
                    randomness.adopt(mediator, data.req_id, worker, self.relay.device)

    def scope(self, model: Any, spans: list[tuple[str, int]]) -> None:
        """Point the workers at their rows, then let the relay replay what came before."""
        # nnsight notes here which workers sit a step out, from counts that the relay moves
        # at other times; `Relay._credit` does that for every visit instead.
        self.out = set()
        super().scope(model, spans)
        self.out = set()
        self.relay.scoped(spans)

"""nnsight's request table, extended for the relay."""

from __future__ import annotations

from typing import Any

from nnsight.modeling.vllm.model_runners.GPUModelRunner import Requests

from conformance.engines.vllm.relay import randomness
from conformance.engines.vllm.relay.stage import Relay


class RelayRequests(Requests):  # type: ignore[misc]
    """nnsight's request table, which notifies the relay.

    The class of a loaded runner's table is changed to this one; ``relay`` is then set.
    """

    relay: Relay
    out: set[Any]

    def add(self, new_requests: list[Any], persistent_objects: dict[str, Any]) -> None:
        """Add new requests, and give their workers separate random states."""
        super().add(new_requests, persistent_objects)
        for data in new_requests:
            request = self.requests[data.req_id]
            workers = [*request.copies.items(), ("trace", request.mediator)]
            for index, (name, mediator) in enumerate(workers):
                if mediator is not None and mediator.worker is None:
                    worker = "trace" if name == "trace" else str(index)
                    randomness.adopt(mediator, data.req_id, worker, self.relay.device)

    def scope(self, model: Any, spans: list[tuple[str, int]]) -> None:
        """Point the workers at their rows, then let the relay replay the earlier stages."""
        # nnsight lists in `out` the workers that sit a step out, from counts that the relay changes
        # at other times; `Relay._credit` handles every visit instead.
        self.out = set()
        super().scope(model, spans)
        self.out = set()
        self.relay.scoped(spans)

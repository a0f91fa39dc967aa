"""The harness proved on itself: faults injected inside real workers, judged as any run is."""

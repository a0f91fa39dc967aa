"""Inject faults into real workers: hook points around an engine, and a switch per variant."""

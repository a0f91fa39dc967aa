"""Test the harness on itself: inject faults into real workers and judge them like any run."""

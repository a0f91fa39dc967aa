"""Planning of a run: which cells are chosen, and the jobs that observe them."""

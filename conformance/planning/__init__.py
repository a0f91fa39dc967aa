"""What a run is made of: which cells are chosen, and the jobs that observe them."""

"""What users write, and the records that every other part passes on."""

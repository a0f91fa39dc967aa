"""Search for edits of a user's file: propose them from its syntax tree, run and verify them."""

"""A user's file as text, never run: where its values come from, and what it writes, and when."""

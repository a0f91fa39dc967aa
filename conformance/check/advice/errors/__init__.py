"""Why a user's function ended in an error, and the line that mends it."""

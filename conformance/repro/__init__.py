"""One cell as a script that needs nothing of the harness: to attach to an issue, or to debug."""

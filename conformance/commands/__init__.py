"""The commands of the command line: a module each, or a folder with its `command.py`."""

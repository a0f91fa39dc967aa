"""What several commands share: options, selection, environments, and running a plan."""

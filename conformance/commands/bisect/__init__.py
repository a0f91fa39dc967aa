"""Find where a cell's signature changed: among releases, commits, or between lock files."""

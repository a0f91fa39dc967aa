"""Where a cell's signature changed: among releases, between lock files, among commits."""

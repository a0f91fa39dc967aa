"""The rows of candidates that a search goes through: releases, revisions and lock files."""

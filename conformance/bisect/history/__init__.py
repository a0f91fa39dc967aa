"""The rows that a search goes through: releases, revisions and lock files."""

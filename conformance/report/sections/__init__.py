"""Contents of a page or a terminal as data: one module for each kind of section."""

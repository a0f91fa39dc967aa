"""What a page or a terminal shows, as data: one module for each kind of section."""

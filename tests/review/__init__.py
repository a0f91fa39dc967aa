"""The fourteen points of a hostile reading of the judge, an experiment each."""

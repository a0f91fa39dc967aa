"""What a hostile reading found: experiments on the judge, and unique names of classes."""

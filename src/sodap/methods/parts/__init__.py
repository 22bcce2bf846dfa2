"""Building blocks that the baselines share; none of them is a method by itself."""

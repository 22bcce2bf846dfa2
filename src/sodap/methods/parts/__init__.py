"""Building blocks shared by the baselines; none of them is a method itself."""

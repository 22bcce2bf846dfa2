"""Tables that compare methods over seeds, and whether their differences are more than noise."""

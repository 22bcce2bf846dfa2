"""What a user can cause and mend: one sentence that says what is wrong, where, and what to do.

The command line prints the sentence and exits with 2; from Python it is an ordinary exception.
"""


class SodapError(Exception):
    """The base of every error that is the input's fault, not the program's."""

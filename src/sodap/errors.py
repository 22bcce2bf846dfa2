"""Errors that a user can cause and fix.

Each message is one sentence: what is wrong, where, and what to do. The command line prints it and
exits with code 2; from Python these are ordinary exceptions.
"""


class SodapError(Exception):
    """Base class of all errors that are caused by the input, not by the program."""


class FolderBusyError(SodapError):
    """Another process holds the lock of a folder."""


class TrainingBrokeError(SodapError):
    """A loss or an output of the model is not a finite number any more."""

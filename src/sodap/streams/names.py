"""File names that are not valid UTF-8: how to detect them and how to print them."""

from __future__ import annotations


def is_utf8(name: str) -> bool:
    """Whether a file name is valid UTF-8; Python keeps other bytes as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(name: object) -> str:
    r"""Return a name or path with invalid bytes escaped, as in `M\udcfcller.jpg`."""
    return str(name).replace("\0", r"\x00").encode(errors="backslashreplace").decode()

"""Names of files as people read them: a disk takes any bytes, a page and a terminal do not."""

from __future__ import annotations


def is_utf8(name: str) -> bool:
    """Python keeps other bytes of a name as halves of characters, which no text can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(name: object) -> str:
    r"""A name or a path with what is no text in it spelled out, as in `M\udcfcller.jpg`."""
    return str(name).replace("\0", r"\x00").encode(errors="backslashreplace").decode()

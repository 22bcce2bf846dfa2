"""`python -m sodap` is `sodap`."""

from sodap.cli import main

main()

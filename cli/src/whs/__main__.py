"""`python -m whs` is `whs`."""

from whs.main import main

main()

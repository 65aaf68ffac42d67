"""`python -m chairlift` is the command `chairlift`."""

from chairlift.cli import main

main()

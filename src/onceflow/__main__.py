"""`python -m onceflow` is the command line."""

from onceflow.cli import main

main()

"""`python -m numerics`: the command line where its script is not installed."""

from numerics.cli.app import main

if __name__ == "__main__":
    main()

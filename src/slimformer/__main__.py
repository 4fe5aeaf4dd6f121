"""`python -m slimformer`: the command line, for where no `slimformer` is on the path."""

from slimformer.cli.app import main

if __name__ == "__main__":
    main()

"""`python -m capelin_cli` is `capelin`."""

from capelin_cli.verbs import main

if __name__ == "__main__":
    main()

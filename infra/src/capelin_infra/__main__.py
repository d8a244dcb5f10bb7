"""`python -m capelin_infra` is `capelin`."""

from capelin_infra.cli import main

if __name__ == "__main__":
    main()

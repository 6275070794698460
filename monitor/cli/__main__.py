"""`python -m monitor.cli`: the command `rankmon`, for a checkout in which it is not installed."""

from monitor.cli import main

if __name__ == "__main__":
    main()

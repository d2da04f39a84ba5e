"""`python -m dikkat` is the command `dikkat`."""

from dikkat.cli import main

if __name__ == "__main__":
    main()

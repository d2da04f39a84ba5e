"""Run the command `dikkat` as `python -m dikkat`."""

from dikkat.cli import main

if __name__ == "__main__":
    main()

"""The command line `dikkat`: a thin skin on `dikkat.translation`, `dikkat.regression` and `dikkat.show`."""

import sys
import warnings

from dikkat.extras import extra_of, missing


def main() -> None:
    """Run the command line on the process's arguments. What a user did wrong is one line, and exit status 2."""
    try:
        # Imported here, so that Ctrl-C while the libraries are being imported is caught too.
        from dikkat.cli.run import run

        with warnings.catch_warnings():  # the caller's way of showing them comes back
            warnings.showwarning = _show_warning
            run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _extra(package)
        if extra is None:
            raise
        print(f"dikkat: {missing(package, extra)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("dikkat: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _extra(package: str) -> str | None:
    """The extra that brings a package; of several, that of the command which was called."""
    return extra_of(package, first="regression" if "regress" in sys.argv[1:2] else "translation")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line, without the place in the code, which is no use to a user."""
    print("dikkat: " + " ".join(str(message).split()), file=sys.stderr)

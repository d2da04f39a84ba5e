"""The command line `dikkat`: a thin skin on `dikkat.translation`, `dikkat.regression` and `dikkat.show`."""

import os
import sys
import warnings

from dikkat.cli.messages import complain, show_warning
from dikkat.extras import extra_of, missing


def main() -> None:
    """Run the command line on the process's arguments. What a user did wrong is one line, and exit status 2."""
    # PyTorch's threads read this when it is imported: those that wait busily take the cores of other work, and train
    # ten times as slowly beside it.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.argv[1:2] == ["train"] and not {"--help", "-h"} & {*sys.argv} and sys.stderr.isatty():
        print("starting PyTorch, then reading the corpus", file=sys.stderr)  # both take seconds
    try:
        # Imported here, so that Ctrl-C while the libraries are being imported is caught too.
        from dikkat.cli.run import run_application

        with warnings.catch_warnings():  # the caller's way of showing them comes back
            warnings.showwarning = show_warning
            run_application()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        # Of several extras that bring it, that of the command which was called.
        extra = extra_of(package, first="regression" if "regress" in sys.argv[1:2] else "translation")
        if extra is None:
            raise
        complain(missing(package, extra))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        complain("interrupted")
        raise SystemExit(130) from None

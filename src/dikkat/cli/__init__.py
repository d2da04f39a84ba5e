"""The command `dikkat`, which calls `dikkat.translation`, `dikkat.regression` and `dikkat.show`."""

import os
import sys
import warnings

from dikkat.cli.messages import complain, show_warning
from dikkat.extras import extra_of, missing


def main() -> None:
    """Run the command with the arguments of the process; a user error prints one line and exits with status 2."""
    # PyTorch reads this at import. If its threads wait busily, training next to other programs takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.argv[1:2] == ["train"] and not {"--help", "-h"} & {*sys.argv} and sys.stderr.isatty():
        print("loading PyTorch and the corpus", file=sys.stderr)  # takes seconds
    try:
        # Imported here, to catch Ctrl-C during the imports too.
        from dikkat.cli.run import run_application

        with warnings.catch_warnings():  # restores the caller's `showwarning`
            warnings.showwarning = show_warning
            run_application()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        # If several extras install the package, name the one of this command.
        extra = extra_of(package, first="regression" if "regress" in sys.argv[1:2] else "translation")
        if extra is None:
            raise
        complain(missing(package, extra))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        complain("interrupted")
        raise SystemExit(130) from None

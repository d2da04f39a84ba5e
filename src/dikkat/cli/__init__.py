"""The command line `dikkat`: a thin skin on `dikkat.translation` and `dikkat.show`."""

import sys
import warnings

_EXTRAS = {
    "typer": "translation",
    "rich": "translation",
    "lightning": "translation",
    "tokenizers": "translation",
    "safetensors": "translation",
    "sacrebleu": "translation",
    "yaml": "translation",
    "pyarrow": "translation",
    "httpx": "translation",
    "platformdirs": "translation",
    "filelock": "translation",
    "huggingface_hub": "translation",
    "datasets": "datasets",
    "matplotlib": "show",
}


def main() -> None:
    """Run the command line on the process's arguments. What a user did wrong is one line, and exit status 2."""
    try:
        from dikkat.cli.commands import run

        with warnings.catch_warnings():  # the caller's way of showing them comes back
            warnings.showwarning = _show_warning
            run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        print(f"dikkat: {package} is not installed; run: pip install 'dikkat[{_EXTRAS[package]}]'", file=sys.stderr)
        raise SystemExit(2) from None


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line, without the place in the code, which is no use to a user."""
    print("dikkat: " + " ".join(str(message).split()), file=sys.stderr)

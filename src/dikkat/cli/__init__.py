"""The command line `dikkat`: a thin skin on `dikkat.translation` and `dikkat.show`."""

import sys

_EXTRAS = {
    "typer": "translation",
    "rich": "translation",
    "lightning": "translation",
    "tokenizers": "translation",
    "safetensors": "translation",
    "sacrebleu": "translation",
    "matplotlib": "show",
}


def main() -> None:
    """Run the command line on the process's arguments. What a user did wrong is one line, and exit status 2."""
    try:
        from dikkat.cli.commands import run

        run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        print(f"dikkat: {package} is not installed; run: pip install 'dikkat[{_EXTRAS[package]}]'", file=sys.stderr)
        raise SystemExit(2) from None

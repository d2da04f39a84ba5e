"""`dikkat train --from my-model`: a trained model learns corrections."""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dikkat.cli.messages import suggest
from dikkat.errors import InputError
from dikkat.translation import Translator
from dikkat.translation.data.corpus_source import CorpusSource
from dikkat.translation.training.continuing import check_trainable, continue_training


def continue_model(old: Path, corrections: CorpusSource | None, values: Mapping[str, Any], output: Path) -> None:
    """Train the model of a folder on corrections, and save the result as another folder.

    `values` are the options by name, parsed: the old corpus, its validation pairs and settings.
    """
    from dikkat.translation.formats.recipe import Recipe

    if "test" in values:
        raise InputError("--test has no effect with --from: remove it, and use `dikkat evaluate` afterwards")
    plan = Recipe().with_values(values)
    if plan.corpus is None:
        raise InputError("--corpus: missing; expected old training pairs with --from, so that the model forgets none")
    translator = Translator.load(old)
    check_trainable(translator, str(old))
    known = translator.origin.languages if translator.origin else None
    if corrections is None and not len(translator.memory):
        raise InputError(f"--corrections: missing; expected it with --from, as {old} has no stored corrections")
    for name, source in (("--corrections", corrections), ("--corpus", plan.corpus)):
        if source is not None:
            _check_languages(known, source.languages, old, f"{name} {source.title()}")
    pairs, validation = plan.data()
    if validation is None:
        raise InputError("--validation: got none with --from; expected old validation pairs, to see what is forgotten")
    result = continue_training(
        translator,
        [] if corrections is None else corrections.open("training"),
        pairs,
        validation,
        values=plan.values,
        tell=_report,
    )
    result.translator.save(output)
    _report(f"{output}: {result}")
    suggest(f"dikkat evaluate {shlex.quote(str(output))} --versus {shlex.quote(str(old))} --corpus test.tsv")


def _check_languages(
    known: tuple[str, str] | None, languages: tuple[str, str] | None, model: Path, corpus: str
) -> None:
    if known and languages and not all(map(_are_equal, known, languages)):
        raise InputError(
            f"{corpus}: got {' and '.join(languages)}; expected {' and '.join(known)}, the languages of {model}"
        )


def _are_equal(a: str, b: str) -> bool:
    """Return whether two names of languages agree; a code and a name, such as en and English, are not compared."""
    bases = [re.split("[-_]", name.casefold())[0] for name in (a, b)]
    return bases[0] == bases[1] or (len(bases[0]) == 2) != (len(bases[1]) == 2)


def _report(text: str) -> None:
    print(text, file=sys.stderr)

"""The spelling of corpora in recipes and on the command line."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from dikkat.errors import InputError
from dikkat.storage import toml
from dikkat.translation import phrasebook
from dikkat.translation.data.catalogues import CatalogueCorpus, kind_of
from dikkat.translation.data.corpus import AlignedCorpus, DatasetCorpus, TsvCorpus
from dikkat.translation.data.named_corpora import NAMES, named
from dikkat.translation.errors import CorpusError
from dikkat.translation.fields import nearest

Part = Literal["training", "validation", "test", "whole"]

PHRASEBOOK = "phrasebook"
_KNOWN_NAMES = [PHRASEBOOK, *NAMES]
SPELLINGS = (
    '"NAME", "FILE", {tsv = "FILE"}, {source = "FILE", target = "FILE"}, or with source = "COLUMN", target = "COLUMN" '
    '{tsv = "FILE", …} or {dataset = "NAME", …}'
)

_FORMS = {  # required and optional keys of each form
    "name": ({"name"}, {"part", "first"}),
    "dataset": ({"dataset", "source", "target"}, {"config", "split", "first"}),
    "tsv": ({"tsv"}, {"source", "target", "first"}),
    "source": ({"source", "target"}, {"first"}),
}


@dataclass(frozen=True)
class CorpusSource:
    """A source of sentence pairs.

    | spelling | pairs |
    | --- | --- |
    | `phrasebook`, `multi30k-en-fr` … | a corpus that dikkat knows by name; the part for its use in the recipe |
    | `{name = "tatoeba-fra-eng", part = "whole"}` | a corpus by name, and training, validation, test or whole |
    | `pairs.tsv`, `{tsv = "pairs.tsv"}` | lines of sentence, tab, translation; file names have a dot or a slash |
    | `pairs.csv`, `{tsv = "pairs.csv", source = "COLUMN", target = "COLUMN"}` | a table, with columns by their names |
    | `memory.tmx`, `{tsv = "memory.tmx", source = "en", target = "tr"}` | TMX, XLIFF, PO or MO, also with languages |
    | `{source = "FILE", target = "FILE"}` | two files; line i of one translates line i of the other |
    | `{dataset = "NAME", source = "COLUMN", target = "COLUMN"}` | a Hugging Face data set; also `config`, `split` |
    | `{dataset = "./FOLDER", …}` | a data set from a folder, whose name begins with a dot, a slash or `~` |

    With `first = N` in braces, only the first N pairs. Names of files and folders may begin with `~`, the home folder.

    Attributes:
        name: A corpus that dikkat knows.
        part: The part of the corpus `name`; None: the one for its use in the recipe.
        tsv: A file of pairs.
        source: A file of sentences, the column of a table or a data set, or the language of a TMX or XLIFF file.
        target: A file, a column or a language of their translations.
        dataset: A data set of the Hugging Face Hub, or a local folder.
        config: The data set's configuration.
        split: The data set's split.
        first: The number of pairs to take from the beginning; they are held in memory.

    Example:
        >>> CorpusSource.parse({"tsv": "pairs.tsv", "first": 600})
        CorpusSource(name=None, part=None, tsv='pairs.tsv', source=None, target=None, dataset=None, config=None, \
split=None, first=600)
        >>> CorpusSource.parse("phrasebok")
        Traceback (most recent call last):
            ...
        dikkat.errors.InputError: phrasebok: unknown corpus; did you mean phrasebook?
    """

    name: str | None = None
    part: Part | None = None
    tsv: str | None = None
    source: str | None = None
    target: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str | None = None
    first: int | None = None

    @classmethod
    def parse(cls, value: object, base: Path = Path()) -> "CorpusSource":
        """Return the source of a spelling: a name, a file, or a mapping of a form's keys to values of TOML's types.

        Names of files and folders are relative to the folder `base`.

        Raises:
            InputError: An unknown name or form; a key that is missing, unknown or of the wrong type.
        """
        values = {"tsv" if {".", "/", "\\"} & set(value) else "name": value} if isinstance(value, str) else value
        if not isinstance(values, Mapping) or not values:
            raise InputError(f"got {value!r}; expected {SPELLINGS}")
        required, optional = _find_form(values)
        for key in values:
            if key not in required | optional:
                raise InputError(f"{key}: unknown key of a corpus; {nearest(key, sorted(required | optional))}")
        if missing := sorted(required - set(values)):
            raise InputError(f"{missing[0]} is missing from the corpus {dict(values)}; expected {SPELLINGS}")
        _check_values(values, base)
        paths = {key: base / _expand(key, values[key]) for key in _path_keys(values)}
        if "dataset" in paths:
            paths["dataset"] = paths["dataset"].absolute()  # without its dot, the name would be one of the Hub
        checked: dict[str, Any] = {**values, **{key: str(path) for key, path in paths.items()}}
        return cls(**checked)

    def spelling(self) -> dict[str, Any]:
        """Return the mapping from which `parse` makes this source, with absolute names of files and folders."""
        values = self._values()
        return values | {key: str(Path(values[key]).absolute()) for key in _path_keys(values)}

    def __str__(self) -> str:
        values = self._values()
        return self.name if self.name and len(values) == 1 else toml.written(values)

    def title(self) -> str:
        """Return the spelling without this machine's folders.

        Example:
            >>> CorpusSource.parse("/home/marie/pairs.tsv").title()
            '{tsv = "pairs.tsv"}'
        """
        values = self._values()
        names: dict[str, Any] = {key: Path(values[key]).name for key in _path_keys(values)}
        return str(replace(self, **names))

    def _values(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def has_part(self, part: Part) -> bool:
        """Return whether the corpus has the part as a fixed set of pairs; only named corpora do."""
        return self.name is not None and self.part is None and (self.name != PHRASEBOOK or part != "validation")

    @property
    def languages(self) -> tuple[str, str] | None:
        """The source and the target language, if the names of the corpus or of its columns have them."""
        if self.tsv is not None:
            return self._file(self.tsv).languages
        return None if self.name is None else ("en", "de" if self.name.endswith("-de") else "fr")

    def open(self, part: Part) -> Any:
        """Return the pairs of `self.part`, or else of `part`, as a list or a corpus.

        Raises:
            CorpusError: The corpus cannot be read, or lacks the part.
            OSError: A file cannot be opened.
        """
        corpus = self._open(self.part or part)
        return corpus if self.first is None else list(islice(corpus, self.first))

    def _file(self, path: str) -> TsvCorpus | CatalogueCorpus:
        return (CatalogueCorpus if kind_of(path) else TsvCorpus)(path, self.source, self.target)

    def _open(self, part: Part) -> Any:
        if self.name == PHRASEBOOK:
            if part == "validation":
                raise CorpusError("the phrasebook has no validation part: write {share = 0.05} to hold out 5 %")
            return phrasebook.pairs() if part == "whole" else phrasebook.split()[part == "test"]
        if self.name is not None:
            return getattr(named(self.name), part)
        if self.tsv is not None:
            return self._file(self.tsv)
        source, target = self.source or "", self.target or ""  # neither is None in the other two forms
        if self.dataset is not None:
            return DatasetCorpus(self.dataset, self.config, self.split or "train", source=source, target=target)
        return AlignedCorpus(source, target)


def _find_form(values: Mapping[Any, object]) -> tuple[set[str], set[str]]:
    for key, form in _FORMS.items():
        if key in values:
            return form
    if "target" in values:
        return _FORMS["source"]
    raise InputError(f"{', '.join(map(str, values))}: unknown key of a corpus; expected {SPELLINGS}")


def _path_keys(values: Mapping[str, Any]) -> list[str]:
    if "dataset" in values:
        return ["dataset"] if values["dataset"].startswith((".", "/", "~")) else []
    return ["tsv"] if "tsv" in values else [key for key in ("source", "target") if key in values]


def _expand(key: str, name: str) -> Path:
    try:
        path = Path(name).expanduser()
        is_valid = b"\0" not in str(path).encode()
    except (RuntimeError, UnicodeEncodeError):  # an unknown user's home folder; lone surrogates
        is_valid = False
    if not is_valid:
        raise InputError(f"{key}: got {name!r}; expected the name of a file")
    return path


def _check_values(values: Mapping[str, object], base: Path) -> None:
    for key, value in values.items():
        if key == "first":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"first: got {value!r}; expected a whole number of at least 1")
        elif not isinstance(value, str) or not value:
            raise InputError(f"{key}: got {value!r}; expected a text")
    name, part = values.get("name"), values.get("part")
    if name is not None and name not in _KNOWN_NAMES:
        path = base / str(name)
        is_file = os.path.exists(path) and not os.path.isdir(path)  # noqa: PTH110, PTH112 - Path's raise for a long name
        hint = f"; write ./{name} for the file" if is_file else ""
        raise InputError(f"{name}: unknown corpus; {nearest(name, _KNOWN_NAMES)}{hint}")
    if part is not None and part not in get_args(Part):
        raise InputError(f"part: got {part!r}; expected one of {', '.join(get_args(Part))}")

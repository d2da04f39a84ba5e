"""A corpus as recipes and the command line spell it."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from dikkat.errors import InputError
from dikkat.storage import toml
from dikkat.translation import phrasebook
from dikkat.translation.data.corpus import AlignedCorpus, DatasetCorpus, TsvCorpus
from dikkat.translation.data.named_corpora import NAMES, named
from dikkat.translation.errors import CorpusError
from dikkat.translation.fields import nearest

Part = Literal["training", "validation", "test", "whole"]

PHRASEBOOK = "phrasebook"
_KNOWN = [PHRASEBOOK, *NAMES]
SPELLINGS = (
    '"NAME", "FILE", {tsv = "FILE"}, {source = "FILE", target = "FILE"}, or with source = "COLUMN", target = "COLUMN" '
    '{tsv = "FILE", …} or {dataset = "NAME", …}'
)

_FORMS = {  # the keys of each form: those that must be there, those that may
    "name": ({"name"}, {"part", "first"}),
    "dataset": ({"dataset", "source", "target"}, {"config", "split", "first"}),
    "tsv": ({"tsv"}, {"source", "target", "first"}),
    "source": ({"source", "target"}, {"first"}),
}


@dataclass(frozen=True)
class Source:
    """A place that sentence pairs come from.

    | spelling | which pairs |
    | --- | --- |
    | `phrasebook`, `multi30k-en-fr` … | a corpus that dikkat knows by name; the part that it is used for |
    | `{name = "tatoeba-fra-eng", part = "whole"}` | the same, of another part: training, validation, test or whole |
    | `pairs.tsv`, `{tsv = "pairs.tsv"}` | lines of sentence, tab, translation; what has a dot or a slash is a file |
    | `pairs.csv`, `{tsv = "pairs.csv", source = "COLUMN", target = "COLUMN"}` | a table, with columns by their names |
    | `{source = "FILE", target = "FILE"}` | two files; line i of one translates line i of the other |
    | `{dataset = "NAME", source = "COLUMN", target = "COLUMN"}` | a Hugging Face data set; also `config`, `split` |
    | `{dataset = "./FOLDER", …}` | the same, from a folder: what begins with a dot, a slash or `~` is one |

    With `first = N` in braces, the first N pairs alone. A file's or folder's name may begin with `~`, the home folder.

    Attributes:
        name: A corpus that dikkat knows.
        part: Which of its parts; None: the one that it is used for.
        tsv: A file of pairs.
        source: A file of sentences, or the column of a table or a data set.
        target: A file or a column of their translations.
        dataset: A data set of the Hugging Face Hub, or a local folder.
        config: Which configuration of it.
        split: Which split of it.
        first: How many pairs to take from its beginning; they are held in memory.

    Example:
        >>> Source.parse({"tsv": "pairs.tsv", "first": 600})
        Source(name=None, part=None, tsv='pairs.tsv', source=None, target=None, dataset=None, config=None, split=None, \
first=600)
        >>> Source.parse("phrasebok")
        Traceback (most recent call last):
            ...
        dikkat.errors.InputError: phrasebok: no such corpus; did you mean phrasebook?
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
    def parse(cls, value: object, base: Path = Path()) -> "Source":
        """A source from its spelling: a name, a file, or the keys of a form with their values, as TOML has them.

        Names of files and folders begin in the folder `base`.

        Raises:
            InputError: No such name or form; a key missing, unknown or of the wrong type.
        """
        values = {"tsv" if {".", "/", "\\"} & set(value) else "name": value} if isinstance(value, str) else value
        if not isinstance(values, Mapping) or not values:
            raise InputError(f"{value!r} is not a corpus: write {SPELLINGS}")
        required, optional = _form(values)
        for key in values:
            if key not in required | optional:
                raise InputError(f"{key}: no such key of a corpus; {nearest(key, sorted(required | optional))}")
        if missing := sorted(required - set(values)):
            raise InputError(f"{missing[0]} is missing from the corpus {dict(values)}: write {SPELLINGS}")
        _check_values(values, base)
        places = {key: base / _place(key, values[key]) for key in _places(values)}
        if "dataset" in places:
            places["dataset"] = places["dataset"].absolute()  # without its dot, it would be a name of the Hub
        checked: dict[str, Any] = {**values, **{key: str(place) for key, place in places.items()}}
        return cls(**checked)

    def spelling(self) -> dict[str, Any]:
        """The values that `parse` makes this source of; names of files and folders absolute."""
        given = self._given()
        return given | {key: str(Path(given[key]).absolute()) for key in _places(given)}

    def __str__(self) -> str:
        given = self._given()
        return self.name if self.name and len(given) == 1 else toml.written(given)

    def title(self) -> str:
        """The spelling as a person would write it, without the folders of this machine.

        Example:
            >>> Source.parse("/home/marie/pairs.tsv").title()
            '{tsv = "pairs.tsv"}'
        """
        given = self._given()
        names: dict[str, Any] = {key: Path(given[key]).name for key in _places(given)}
        return str(replace(self, **names))

    def _given(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def has_part(self, part: Part) -> bool:
        """True where the corpus itself says which of its pairs are of the part: a named one does."""
        return self.name is not None and self.part is None and (self.name != PHRASEBOOK or part != "validation")

    @property
    def languages(self) -> tuple[str, str] | None:
        """The source and the target language, if the corpus's name or the names of its columns say them."""
        if self.tsv is not None:
            return TsvCorpus(self.tsv, self.source, self.target).languages
        return None if self.name is None else ("en", "de" if self.name.endswith("-de") else "fr")

    def open(self, part: Part) -> Any:
        """The pairs of the part, if the spelling has no other: a list, or a corpus that is read as it is gone through.

        Raises:
            CorpusError: It cannot be read, or has no such part.
            OSError: A file cannot be opened.
        """
        corpus = self._open(self.part or part)
        return corpus if self.first is None else list(islice(corpus, self.first))

    def _open(self, part: Part) -> Any:
        if self.name == PHRASEBOOK:
            if part == "validation":
                raise CorpusError("the phrasebook has no validation part: write {share = 0.05} to set some of it aside")
            return phrasebook.pairs() if part == "whole" else phrasebook.split()[part == "test"]
        if self.name is not None:
            return getattr(named(self.name), part)
        if self.tsv is not None:
            return TsvCorpus(self.tsv, self.source, self.target)
        source, target = self.source or "", self.target or ""  # there in both forms that are left
        if self.dataset is not None:
            return DatasetCorpus(self.dataset, self.config, self.split or "train", source=source, target=target)
        return AlignedCorpus(source, target)


def _form(values: Mapping[Any, object]) -> tuple[set[str], set[str]]:
    for key, form in _FORMS.items():
        if key in values:
            return form
    if "target" in values:
        return _FORMS["source"]
    raise InputError(f"{', '.join(map(str, values))}: no such key of a corpus; write {SPELLINGS}")


def _places(values: Mapping[str, Any]) -> list[str]:
    """The keys whose values are files or folders of this machine."""
    if "dataset" in values:
        return ["dataset"] if values["dataset"].startswith((".", "/", "~")) else []
    return ["tsv"] if "tsv" in values else [key for key in ("source", "target") if key in values]


def _place(key: str, name: str) -> Path:
    try:
        place = Path(name).expanduser()
        possible = b"\0" not in str(place).encode()
    except (RuntimeError, UnicodeEncodeError):  # nobody's home folder; letters that no recipe may have
        possible = False
    if not possible:
        raise InputError(f"{key}: got {name!r}; expected the name of a file")
    return place


def _check_values(values: Mapping[str, object], base: Path) -> None:
    for key, value in values.items():
        if key == "first":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"first: got {value!r}; expected a whole number of at least 1")
        elif not isinstance(value, str) or not value:
            raise InputError(f"{key}: got {value!r}; expected a text")
    name, part = values.get("name"), values.get("part")
    if name is not None and name not in _KNOWN:
        place = base / str(name)
        there = os.path.exists(place) and not os.path.isdir(place)  # noqa: PTH110, PTH112 - Path's raise for a long name
        file = f"; write ./{name} for the file" if there else ""
        raise InputError(f"{name}: no such corpus; {nearest(name, _KNOWN)}{file}")
    if part is not None and part not in get_args(Part):
        raise InputError(f"part: got {part!r}; expected one of {', '.join(get_args(Part))}")

"""Recipes: the data and the settings of a training, in a TOML file."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from dikkat.errors import InputError
from dikkat.storage import toml
from dikkat.storage.files import write_whole
from dikkat.translation.data.corpus_source import CorpusSource, Part
from dikkat.translation.data.splits import NothingToHoldOutError, hold_out, without_leaks
from dikkat.translation.errors import CorpusError
from dikkat.translation.fields import allowed, nearest
from dikkat.translation.settings import Settings

SUFFIX = ".toml"
SHARE = 0.05
SECTIONS = ("corpus", "validation", "test")

# Whether each setting may be None, which recipes write as "none".
_OPTIONAL = {name: values.optional for name, values in allowed(Settings).items()}

Validation = CorpusSource | float | Literal["none"] | None


@dataclass(frozen=True)
class Recipe:
    """The data and the settings of a training.

    Attributes:
        corpus: The training pairs.
        validation: The pairs for validation during training: a corpus; a share of `corpus`, which is held out;
            `"none"`; or None: the corpus's validation part, or else a share of 0.05, or nothing if all pairs have
            one source sentence.
        test: The pairs to score the trained model on.
        values: The chosen settings; the rest have their defaults, or are chosen by the corpus (`suited`).

    Example:
        >>> recipe = Recipe().with_values({"corpus": "phrasebook", "validation": {"share": 0.1}, "epochs": 3})
        >>> str(recipe.corpus), recipe.validation, recipe.settings.epochs
        ('phrasebook', 0.1, 3)
        >>> recipe.with_values({"epoch": 3})
        Traceback (most recent call last):
            ...
        dikkat.errors.InputError: epoch: unknown key of a recipe; did you mean epochs?
    """

    corpus: CorpusSource | None = None
    validation: Validation = None
    test: CorpusSource | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """All settings: `values`, and defaults that do not depend on the corpus."""
        return Settings.from_dict(self.values)

    @classmethod
    def load(cls, recipe: str | Path) -> "Recipe":
        """Read a recipe from its file.

        Args:
            recipe: A TOML file, or the name of a built-in recipe. File names in a file are relative to its folder,
                those of a built-in recipe to the current folder.

        Raises:
            InputError: An unknown recipe; invalid TOML; a key that is repeated, unknown, or has a value that is not
                allowed. The message names the file, the line and the key.
            OSError: The file cannot be read.
        """
        path = _find(recipe)
        text = _read(path)
        values = toml.read(text, str(path))
        try:
            return cls().with_values(values, Path() if path in built_in().values() else path.parent)
        except InputError as error:
            key = re.match(r"\w+", str(error))
            key_match = key and re.search(rf"^\s*\[?\s*{key[0]}\b", text, re.MULTILINE)
            where = f"{path}, line {text.count(chr(10), 0, key_match.end()) + 1}" if key_match else str(path)
            raise type(error)(f"{where}: {error}") from error

    def with_values(self, values: Mapping[str, Any], base: Path = Path()) -> "Recipe":
        """Return a copy with other values, of TOML's types, of `corpus`, `validation`, `test` and the settings by name.

        File names are relative to the folder `base`.

        Raises:
            InputError: An unknown key (the message suggests the nearest one), or a value that is not allowed.
        """
        known = [*SECTIONS, *_OPTIONAL]
        for key in values:
            if key not in known:
                raise InputError(f"{key}: unknown key of a recipe; {nearest(key, known)}")
        sections: dict[str, Any] = {}
        readers: tuple[Callable[[object, Path], Any], ...] = CorpusSource.parse, _parse_validation, _parse_test
        for key, read in zip(SECTIONS, readers, strict=True):
            try:
                if key in values:
                    sections[key] = read(values[key], base)
            except InputError as error:
                raise type(error)(f"{key}: {error}") from error
        settings = {
            name: None if value == "none" and _OPTIONAL[name] else value
            for name, value in values.items()
            if name not in SECTIONS
        }
        values = {**self.values, **settings}
        Settings.from_dict(values)  # checks the values
        return replace(self, **sections, values=values)

    def save(self, path: Path) -> None:
        """Write the recipe to a file that `load` can read, with absolute file names.

        Raises:
            OSError: The system could not write.
        """
        write_whole(path, "".join(f"{key} = {toml.written(value)}\n" for key, value in self.spelling().items()))

    def spelling(self) -> dict[str, Any]:
        """Return the values from which `with_values` makes this recipe, with absolute file names.

        Example:
            >>> Recipe().with_values({"corpus": "phrasebook", "validation": {"share": 0.1}, "epochs": 3}).spelling()
            {'corpus': {'name': 'phrasebook'}, 'validation': {'share': 0.1}, 'test': 'none', 'epochs': 3}
        """
        values: dict[str, Any] = {"corpus": self.corpus.spelling()} if self.corpus else {}
        if self.validation is not None:
            validation = self.validation
            values["validation"] = {"share": validation} if isinstance(validation, float) else validation
            if isinstance(validation, CorpusSource):
                values["validation"] = validation.spelling()
        values["test"] = self.test.spelling() if self.test else "none"
        return values | {name: "none" if value is None else value for name, value in self.values.items()}

    def data(self) -> tuple[Any, Any]:
        """Return the training and the validation pairs, without common source sentences or those of the test.

        Returns:
            Two corpora, or lists of pairs; the second is None without validation.

        Raises:
            InputError: The recipe has no corpus.
            CorpusError: The corpus cannot be read or split.
            OSError: A file cannot be opened.
        """
        if self.corpus is None:
            raise InputError("corpus: got none; expected one in the recipe or with --corpus")
        pairs = _open("corpus", self.corpus, "training")
        validation = self.validation
        if validation is None:
            validation = self.corpus if self.corpus.has_part("validation") else SHARE
        held_out = _open("validation", validation, "validation") if isinstance(validation, CorpusSource) else None
        if self.test is not None:
            test = _open("test", self.test, "test")
            pairs = _without_leaks(pairs, test)
            held_out = None if held_out is None else _without_leaks(held_out, test)
        if isinstance(validation, float):
            try:
                return hold_out(pairs, validation)
            except NothingToHoldOutError as error:
                if self.validation is not None:  # the user asked for validation
                    raise
                warnings.warn(f"trained without validation: {error}", UserWarning, stacklevel=2)
                return pairs, None
        return (pairs, None) if held_out is None else (_without_leaks(pairs, held_out), held_out)


def read_value(text: str, where: str) -> Any:
    """Return a recipe's value from the text of an option: a table in braces, true or false, a number, or the text.

    Example:
        >>> read_value("phrasebook", "--corpus"), read_value('{tsv = "pairs.tsv", first = 600}', "--corpus")
        ('phrasebook', {'tsv': 'pairs.tsv', 'first': 600})
        >>> read_value("1e-3", "--learning-rate"), read_value("no", "--bidirectional")
        (0.001, 'no')
    """
    if text.lstrip().startswith("{"):
        try:
            (value,) = toml.read(f"value = {text}", where).values()
        except ValueError as error:
            example = '{name = "phrasebook", first = 600}'
            raise InputError(f"{where}: got {text}; expected a table such as {example}") from error
        return value
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def built_in() -> dict[str, Path]:
    """Return the paths of the built-in recipes by name."""
    package = Path(str(files("dikkat")))
    installed = package / "recipes"
    folder = installed if installed.is_dir() else package.parents[1] / "recipes"  # in a clone of the repository
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def purpose(path: Path) -> str:
    """Return the purpose of a recipe, from the comment in its first line."""
    return _read(path).partition("\n")[0].removeprefix("#").strip()


def _find(recipe: str | Path) -> Path:
    path, known = Path(recipe), built_in()
    if path.exists() or path.suffix == SUFFIX:
        return path
    if str(recipe) not in known:
        raise InputError(f"{recipe}: neither a file nor a built-in recipe; {nearest(recipe, list(known))}")
    return known[str(recipe)]


def _read(path: Path) -> str:
    if path.is_dir():
        raise InputError(f"{path}: got a folder; expected a recipe, a file that ends in {SUFFIX}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: got a file that is not UTF-8 ({error.reason} at byte {error.start})") from error


def _open(section: str, source: CorpusSource, part: Part) -> Any:
    try:
        return source.open(part)
    except CorpusError as error:
        raise CorpusError(f"{section} is {source}: {error}") from error


def _without_leaks(pairs: Any, held_out: Any) -> Any:
    remaining = without_leaks(pairs, held_out)
    return list(remaining) if isinstance(pairs, list) else remaining  # a list stays a list, which has a length


def _parse_validation(value: object, base: Path) -> Validation:
    if value == "none":
        return "none"
    if not isinstance(value, Mapping) or "share" not in value:
        return CorpusSource.parse(value, base)
    share = value["share"]
    if set(value) != {"share"} or isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InputError(f"got {dict(value)}; expected only {{share = NUMBER}}, with a number between 0 and 1")
    return float(share)


def _parse_test(value: object, base: Path) -> CorpusSource | None:
    return None if value == "none" else CorpusSource.parse(value, base)

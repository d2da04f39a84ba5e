"""YAML as recipes have it: the plain values of its version 1.2, no key twice, and the line of whatever is wrong.

PyYAML reads version 1.1, in which no is false, 010 is 8 and 1e-3 a text. Tried in its place, ruamel.yaml 0.19.1 has
1.2, but takes 2026-01-01 for a date, repeats lists by aliases, and lets Python's own errors out of tags and of numbers
of 5,000 digits: of what stands here, only the patterns and the check of keys would go.
"""

import re
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import yaml

from dikkat.errors import InputError

Result = TypeVar("Result")


def read(text: str, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a recipe by their keys, and the line of each key.

    Args:
        text: The recipe.
        where: What an error calls it.

    Raises:
        InputError: The text is not YAML, or no recipe; the message has the line.
    """

    def construct(loader: Any) -> tuple[dict[str, Any], dict[str, int]]:
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{where}: not a recipe, which has lines such as `epochs: 20`")
        values = loader.construct_document(node)
        return values, {str(key.value): key.start_mark.line + 1 for key, _ in node.value}

    return _yaml(text, where, construct)


def read_value(text: str, where: str) -> Any:
    """A value as a recipe has it, from the text of an option.

    Raises:
        InputError: The text is not YAML.
    """
    return _yaml(text, where, lambda loader: loader.get_single_data())


def written(values: dict[str, Any]) -> str:
    """A text that `read` makes the values of."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _yaml(text: str, where: str, construct: Callable[[Any], Result]) -> Result:
    try:
        loader = _Loader(text)
        try:
            return construct(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark and "\n" in text else ""
        raise InputError(f"{where}{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply for a recipe") from error


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with the plain values of its version 1.2, so that 1e-3 is a number and yes a word; a key comes but once.

    Lists and mappings are not repeated by `*name`: a few lines of such repetitions stand for more than fits in memory.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (as the class above has it)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A part of the document, checked."""
        repeated = self.peek_event() if self.check_event(yaml.AliasEvent) else None
        node = super().compose_node(parent, index)
        if repeated is not None and not isinstance(node, yaml.ScalarNode):
            problem = f"*{repeated.anchor} repeats a list or a mapping: write it out"
            raise yaml.composer.ComposerError(None, None, problem, repeated.start_mark)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """A value. Where a tag asks for another kind than it is, Python's own errors come from within the library."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            kind = node.tag.replace("tag:yaml.org,2002:", "!!")
            problem = f"{reprlib.repr(node.value)} cannot be read as {kind} ({error})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping, its keys checked."""
        seen: dict[Any, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = key.value, key.start_mark.line + 1
            if name in seen:
                problem = f"{name} is given twice, first in line {seen[name]}: remove one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen[name] = line
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes what `_Loader` reads: it must quote by the same rules."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        """Equal values are written out each time."""
        return True


_PLAIN: Iterable[tuple[str, str, Iterable[str]]] = (
    ("null", r"null|~|", ("n", "~", "")),
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?((\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)", "-+.0123456789"),
)
for _tag, _pattern, _firsts in _PLAIN:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), [*_firsts])

"""Count the words and sentences that make a reader stop, and fail if a count exceeds its limit in words.toml.

    python tools/words.py            # counts and limits
    python tools/words.py --list     # also each place
    python tools/words.py --update   # lower the limits to the counts

A match is a place to look at, not an error: a sentence can match a pattern and still be clear. Limits may only fall.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("words.toml")
LONGEST_SENTENCE = 25  # words

VAGUE_NAMES = frozenset(
    word
    for line in (
        "all_ asked each found given keep kept least left less made more most one ones other others own part parts",
        "place places said seen taken tells these thing things this those told took way ways wanted what which whole",
    )
    for word in line.split()
)
# The first words of a docstring that hide the noun of its returned value.
NO_NOUN = re.compile(
    r"(?:What|Of|Those|These|That|Whether it|How (?:much|many)|(?:In|By|To|From|With) what|Where|As)\b"
)
CLAUSE = re.compile(r"\b(?:that|which|whose|whom|who|where|when)\b", re.IGNORECASE)
POINTER = re.compile(r"\b(?:its?|they|them|their|those|these|such|thereof|else)\b", re.IGNORECASE)
PATTERNS = {
    "a clause with 'what'": r"\b[Ww]hat (?:an?|are|can|ha[ds]|is|its?|may|must|no|nobody|that|the|they|this|was|you)\b",
    "a sentence that begins with 'Of'": r"\AOf\b",
    "'alone' for 'only'": r"(?<!leave )(?<!left )(?<!let )(?<!run )(?<!runs )(?<!stand )\balone\b",
    "'where' for 'if'": r",? where (?:there|nothing|none|no|nobody)\b",
    "a program that says or refuses": r"\b(?:is|are|was|be|been) (?:told|said|refused|asked)\b",
    "things that stand or lie": r"\b(?:stands?|lies?) (?:at|before|behind|beside|for|in|on|there|with)\b",
    "an archaic word": r"\b(?:anew|besides?|but for|lest|for ever|likewise|mended|near by|nobody|thereof|whoever)\b",
    "a semicolon": r";",
}
BROKEN = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
# Markdown that is not prose: code, mathematics, comments, tables, quotes and pictures. Links keep their text.
NOT_PROSE = re.compile(
    r"```.*?```|\$\$.*?\$\$|<!-- table.*?<!-- end -->|<!--.*?-->|\A---\n.*?\n---$|^[|>!].*?$", re.DOTALL | re.MULTILINE
)
INLINE = re.compile(r"`[^`]*`|\$[^$\n]*\$|\[([^\]]*)\]\([^)]*\)")

Place = tuple[str, str]


def vague_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each bound name that says nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name.strip("_") in VAGUE_NAMES or name in VAGUE_NAMES:
            yield node.lineno, name


def docstring_openings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the first sentence of each docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), re.split(r"(?<=[.:])\s", " ".join(text.split()), maxsplit=1)[0]


def sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and list items, with `x` for code and formulas."""
    prose = INLINE.sub(lambda match: match.group(1) or "x", NOT_PROSE.sub("\n\n", markdown))
    for block in re.split(r"\n(?=\s*\n|\s*(?:[-*]|\d+\.) |#+ )", prose):
        block = re.sub(r"\A\s*(?:[-*]|\d+\.|#+ .*) ?", "", block)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*]|x\b)", " ".join(block.split())):
            if len(sentence.split()) > 3:
                yield sentence


def places() -> dict[str, list[Place]]:
    """Return for each kind of count its places, as a file with a line or a page, and the text."""
    names: list[Place] = []
    openings: list[Place] = []
    nested: list[Place] = []
    broken: list[Place] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = path.relative_to(ROOT)
        names += [(f"{file}:{line}", name) for line, name in vague_names(tree)]
        for line, text in docstring_openings(tree):
            clauses = len(CLAUSE.findall(text))
            if NO_NOUN.match(text):
                openings.append((f"{file}:{line}", text))
            elif clauses > 1 or (clauses and len(POINTER.findall(text)) > 1):
                nested.append((f"{file}:{line}", text))
    for page in [
        *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
        *sorted((ROOT / "docs").glob("*.md")),
    ]:
        for sentence in sentences(page.read_text(encoding="utf-8")):
            rules = [name for name, pattern in BROKEN.items() if pattern.search(sentence)]
            if len(sentence.split()) > LONGEST_SENTENCE:
                rules.append(f"more than {LONGEST_SENTENCE} words")
            broken += [(str(page.relative_to(ROOT)), f"{rule}: {sentence}") for rule in rules]
    return {
        "vague_names": names,
        "docstrings_without_noun": openings,
        "nested_docstrings": nested,
        "broken_rules": broken,
    }


def main() -> int:
    """Print the counts, and return 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print each place")
    parser.add_argument("--update", action="store_true", help="lower the limits to the counts")
    options = parser.parse_args()
    limits: dict[str, int] = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    matches = places()
    if options.update:
        limits = {kind: min(limits[kind], len(matches[kind])) for kind in limits}
        LIMITS.write_text("".join(f"{kind} = {limit}\n" for kind, limit in limits.items()), encoding="utf-8")
    exceeded = [kind for kind, limit in limits.items() if len(matches[kind]) > limit]
    for kind, limit in limits.items():
        if options.list or kind in exceeded:
            print(*(f"{place}: {text}" for place, text in matches[kind]), sep="\n")
        print(f"{kind}: {len(matches[kind])}, limit {limit}")
    if exceeded:
        print(
            f"{', '.join(exceeded)}: more than the limit; rewrite the new places, see CONTRIBUTING.md", file=sys.stderr
        )
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main())

"""TMX, PO, MO and XLIFF files as corpora, and PO and XLIFF files that are filled in."""

import gettext
import gzip
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import etree

from dikkat.errors import InputError
from dikkat.translation import CatalogueCorpus, CorpusError, CorpusSource
from dikkat.translation.data.catalogues import kind_of
from dikkat.translation.formats.catalogues import read_catalogue
from processes import python

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="EN"/><body>
<tu><tuv xml:lang="tr"><seg>Merhaba <bpt i="1">&lt;b></bpt>dünya<ept i="1">&lt;/b></ept>.</seg></tuv>
<tuv xml:lang="en-US"><seg>Hello <bpt i="1">&lt;b></bpt>world<ept i="1">&lt;/b></ept>.</seg></tuv></tu>
<!-- no translation -->
<tu><tuv xml:lang="en-US"><seg>Go.</seg></tuv><tuv xml:lang="tr"><seg/></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>Go <hi>on
   now</hi>.</seg></tuv><tuv lang="tr"><seg>Devam et.</seg></tuv></tu>
MORE</body></tmx>"""
GERMAN = '<tu><tuv xml:lang="de"><seg>Los.</seg></tuv><tuv xml:lang="en-US"><seg>Go.</seg></tuv></tu>'

ENTITY = "<!DOCTYPE tmx [<!ENTITY a CONTENT>]><tmx><tu><tuv><seg><hi>x&a;</hi></seg></tuv></tu></tmx>"

XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">
  <file source-language="en" target-language="fr" original="a" datatype="plaintext">
    <body>
      <trans-unit id="1"><source>Go.</source></trans-unit>
      <group><trans-unit id="2">
        <source>Open <g id="1">it</g> &amp; go<x id="2"/></source>
        <note>a</note>
      </trans-unit></group>
      <trans-unit id="3"><source>Size <ph id="1">%d</ph></source></trans-unit>
      <trans-unit id="4"><source>I <g id="1">lost</g>.</source><target state="final">J'ai <g id="1">perdu</g>.</target>
        <alt-trans><source>I won.</source><target>J'ai gagné.</target></alt-trans></trans-unit>
      <trans-unit id="5"><source>Stay.</source><target state="needs-review-translation">Va !</target></trans-unit>
      <trans-unit id="6" translate="no"><source>dikkat</source></trans-unit>
    </body>
  </file>
</xliff>
"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="fr">
<file id="f"><unit id="1"><segment><source>Go <pc id="1">on</pc>.</source></segment>
<segment state="final"><source>I lost.</source><target>J'ai perdu.</target></segment>
<segment state="initial"><source>Stay.</source><target>Va !</target></segment></unit>
<unit id="2" translate="no"><segment><source>dikkat</source></segment></unit></file></xliff>
"""

RUSSIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);"
HEADER = """# Translators of the program.
msgid ""
msgstr ""
"Project-Id-Version: program 1.0\\n"
"X-First: kept before the others\\n"
"Language: ru\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: RULE\\n"

"""
ENTRIES = """#. A comment for translators.
#: main.c:12 main.c:13
#, c-format
msgid "Open %s\\n"
msgstr ""

#, fuzzy
#| msgid "Close it"
msgid "Close"
msgstr "Закрыть его"

msgctxt "menu"
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "%d disk"
msgid_plural "%d disks"
msgstr[0] "%d диск"
msgstr[1] "%d диска"
msgstr[2] "%d дисков"

msgid ""
"  a line that its translator wrapped "
"early\\n"
"and a second one"
msgstr ""
"  строка, "
"перенесённая\\n"
"и вторая"

#~ msgid "obsolete"
#~ msgstr "устаревшее"
"""


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def catalogue(folder: Path, *, rule: str = RUSSIAN, entries: str = ENTRIES) -> Path:
    return written(folder / "messages.po", HEADER.replace("RULE", rule) + entries)


def compiled(path: Path) -> gettext.GNUTranslations:
    """The catalogue, checked and compiled by gettext's own program, fuzzy entries included."""
    binary = path.with_suffix(".mo")
    result = subprocess.run(
        ["msgfmt", "--check", "--use-fuzzy", "-o", binary, path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    with binary.open("rb") as file:
        return gettext.GNUTranslations(file)


def fill(path: Path, **options: bool) -> bytes:
    """Fill each gap with the text in angle brackets."""
    content = read_catalogue(path, **options)
    for gap in content.gaps:
        gap.fill([f"‹{sentence}›" for sentence in gap.sentences])
    return content.content()


def test_pairs_of_a_memory(tmp_path):
    path = written(tmp_path / "memory.tmx", TMX.replace("MORE", ""))
    packed = tmp_path / "memory.TMX.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    pairs = [("Hello world.", "Merhaba dünya."), ("Go on now.", "Devam et.")]
    for file in (path, packed):
        with pytest.warns(UserWarning, match=r"1 of 3 units left out: a side has no text"):
            assert list(CatalogueCorpus(file)) == pairs
        assert CatalogueCorpus(file).languages == ("en-US", "tr")
    with pytest.warns(UserWarning, match="left out"):
        assert list(CatalogueCorpus(path, "tr", "en")) == [(target, source) for source, target in pairs]
    source = CorpusSource.parse({"tsv": str(path), "source": "tr", "target": "en", "first": 1})
    assert source.open("training") == [pairs[0][::-1]]
    assert source.languages == ("tr", "en")
    assert CatalogueCorpus(path).fingerprint() != CatalogueCorpus(path, "tr", "en").fingerprint()


def test_languages_of_a_memory_are_chosen_by_name(tmp_path):
    path = written(tmp_path / "memory.tmx", TMX.replace("MORE", GERMAN))
    with pytest.raises(CorpusError, match=r"got 3 languages: de, en-US, tr; expected two. Choose them: .tsv = .*tmx"):
        list(CatalogueCorpus(path))
    with pytest.warns(UserWarning, match="3 of 4 units left out"):
        assert list(CatalogueCorpus(path, "en-us", "DE")) == [("Go.", "Los.")]
    with pytest.raises(CorpusError, match="got no text in fr; expected de, en-US, tr"):
        list(CatalogueCorpus(path, "en", "fr"))
    with pytest.raises(CorpusError, match="languages: got source='en' and target=None; expected both"):
        CatalogueCorpus(path, "en")


@pytest.mark.parametrize(
    ("header", "languages", "source"),
    [
        ("en-US", ["fr", "en"], "en"),
        ("EN_us", ["fr", "en-GB"], "en-GB"),
        ("en", ["fr", "en-US"], "en-US"),
        ("en-GB", ["en-US", "en-GB"], "en-GB"),
        ("en", ["en-US", "en"], "en"),
        ("en-AU", ["en-US", "en-GB"], "en-US"),
        ("de", ["fr", "en"], "fr"),
    ],
)
def test_the_header_of_a_memory_names_its_source_language_or_a_variant(tmp_path, header, languages, source):
    variants = "".join(f'<tuv xml:lang="{name}"><seg>{name}</seg></tuv>' for name in languages)
    text = f'<tmx version="1.4"><header srclang="{header}"/><body><tu>{variants}</tu></body></tmx>'
    memory = CatalogueCorpus(written(tmp_path / "a.tmx", text))
    expected = (source, next(name for name in languages if name != source))
    assert (memory.languages, list(memory)) == (expected, [expected])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTITY.replace("CONTENT", '"text"'), "the entity &a;, which is not expanded"),
        (ENTITY.replace("CONTENT", 'SYSTEM "file:///etc/passwd"'), "line 1: got the entity &a;, which is not expanded"),
        ("<tmx><body><tu>", r"not well-formed XML \(.*line 1"),
        ("", "not well-formed XML"),
        ("<html/>", "got the element <html>; expected <tmx>"),
        ("<tmx><body/></tmx>", "got no sentence pairs"),
    ],
)
def test_damaged_and_hostile_memories(tmp_path, text, message):
    path = written(tmp_path / "memory.tmx", text)
    with pytest.raises(CorpusError, match=message):
        list(CatalogueCorpus(path))


def test_entities_that_multiply_are_not_expanded(tmp_path):
    names = "abcdefghij"
    entities = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise(names))
    bomb = f'<!DOCTYPE tmx [<!ENTITY a "1234567890">{entities}]><tmx><tu x="&j;"><tuv><seg>&j;</seg></tuv></tu></tmx>'
    with pytest.raises(CorpusError, match=r"not well-formed XML|not expanded"):
        list(CatalogueCorpus(written(tmp_path / "memory.tmx", bomb)))


def test_a_damaged_gz_is_named(tmp_path):
    path = tmp_path / "memory.tmx.gz"
    path.write_bytes(gzip.compress(TMX.encode())[:-20])
    with pytest.raises(CorpusError, match=r"memory\.tmx\.gz: the \.gz file is truncated"):
        list(CatalogueCorpus(path))


MEMORY = """
import resource, sys
from dikkat.translation import CatalogueCorpus
paths = sys.argv[1:]
for path in paths[:3]:
    list(CatalogueCorpus(path))
for path in paths[3:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(1 for _ in CatalogueCorpus(path))
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_large_files_are_read_in_constant_memory(tmp_path):
    english, turkish = "word " * 1_900, "kelime " * 1_400
    sides = f"<source>{english}</source><target>{turkish}</target>"
    variants = "".join(f'<tuv xml:lang="{n}"><seg>{t}</seg></tuv>' for n, t in (("en", english), ("tr", turkish)))
    small, large = [], []
    for kind, beginning, unit, end in (
        ("tmx", "<tmx><body>", f"<tu>{variants}</tu><!-- a comment -->", "</body></tmx>"),
        ("xlf", "<xliff><file><body>", f"<group><trans-unit>{sides}</trans-unit></group>", "</body></file></xliff>"),
        ("xliff", "<xliff><file>", f"<unit><segment>{sides}</segment></unit>", "</file></xliff>"),
    ):
        small.append(written(tmp_path / f"small.{kind}", f"{beginning}{unit}{end}"))
        large.append(written(tmp_path / f"large.{kind}", f"{beginning}{unit * 1_061}{end}"))
        assert large[-1].stat().st_size > 20_000_000
    for line in python(MEMORY, *small, *large).stdout.splitlines():
        count, kilobytes = map(int, line.split())
        assert count == 1_061
        assert kilobytes < 5_000, "the whole file takes more than 20,000"


def test_pairs_of_xliff_without_unreviewed_targets(tmp_path):
    for name, text in (("a.xlf", XLIFF), ("a.xliff", XLIFF_2)):
        path = written(tmp_path / name, text)
        assert list(CatalogueCorpus(path)) == [("I lost.", "J'ai perdu.")]
        assert list(CatalogueCorpus(path, "fr", "en")) == [("J'ai perdu.", "I lost.")]
        assert CatalogueCorpus(path).languages == ("en", "fr")


def test_pairs_of_gettext_catalogues_without_fuzzy_and_obsolete_ones(tmp_path):
    path = catalogue(tmp_path)
    pairs = [
        ("%d disk", "%d диск"),
        ("%d disks", "%d дисков"),
        ("a line that its translator wrapped early and a second one", "строка, перенесённая и вторая"),
    ]
    assert list(CatalogueCorpus(path)) == pairs
    assert list(CatalogueCorpus(path, "msgstr", "msgid")) == [pair[::-1] for pair in pairs]
    assert CatalogueCorpus(path).languages is None
    subprocess.run(["msgfmt", "-o", tmp_path / "messages.mo", path], check=True)
    assert sorted(CatalogueCorpus(tmp_path / "messages.mo")) == sorted(pairs)


@pytest.mark.parametrize(
    ("rule", "forms"),
    [
        (RUSSIAN, ["‹%d file›", "‹%d files›", "‹%d files›"]),
        ("nplurals=1; plural=0;", ["‹%d files›"]),
        ("nplurals=2; plural=(n > 1);", ["‹%d file›", "‹%d files›"]),
        ("nplurals=3; plural=n<2 ? 0 : n % 1000000 == 0 ? 1 : 2;", ["‹%d file›", "‹%d files›", "‹%d files›"]),
        ("nplurals=3; plural=(n==0 ? 0 : n==1 ? 1 : 2);", ["‹%d files›", "‹%d file›", "‹%d files›"]),
    ],
)
def test_each_plural_form_comes_from_the_singular_or_the_plural(tmp_path, rule, forms):
    entry = 'msgid "%d file"\nmsgid_plural "%d files"\n' + "".join(f'msgstr[{n}] ""\n' for n in range(len(forms)))
    path = catalogue(tmp_path, rule=rule, entries=entry)
    path.write_bytes(fill(path))
    texts = compiled(path)
    assert [texts._catalog["%d file", form] for form in range(len(forms))] == forms


def test_a_filled_catalogue_keeps_all_other_bytes(tmp_path):
    path = catalogue(tmp_path)
    before = path.read_text(encoding="utf-8")
    path.write_bytes(fill(path))
    expected = before
    for old, new in (
        ('#, c-format\nmsgid "Open %s\\n"\nmsgstr ""', '#, fuzzy, c-format\nmsgid "Open %s\\n"\nmsgstr "‹Open %s›\\n"'),
        ('msgctxt "menu"', '#, fuzzy\nmsgctxt "menu"'),
        ('msgstr[0] ""', 'msgstr[0] "‹%d file›"'),
        ('msgstr[1] ""', 'msgstr[1] "‹%d files›"'),
        ('msgstr[2] ""', 'msgstr[2] "‹%d files›"'),
    ):
        assert old in expected
        expected = expected.replace(old, new)
    assert path.read_text(encoding="utf-8") == expected
    assert fill(path) == path.read_bytes(), "a second time, nothing is missing"
    texts = compiled(path)
    assert texts.gettext("Open %s\n") == "‹Open %s›\n"
    assert texts.pgettext("menu", "%d file") in ("‹%d file›", "%d file")
    assert [texts.ngettext("%d disk", "%d disks", n) for n in (21, 3, 5)] == ["%d диск", "%d диска", "%d дисков"]


def test_fuzzy_entries_are_replaced_on_request(tmp_path):
    path = catalogue(tmp_path)
    assert (read_catalogue(path).fuzzy, read_catalogue(path).translated) == (1, 2)
    content = fill(path, replace_fuzzy=True).decode()
    assert '#, fuzzy\nmsgid "Close"\nmsgstr "‹Close›"\n' in content
    assert "#|" not in content


def test_line_ends_and_encodings_stay(tmp_path):
    text = HEADER.replace("RULE", RUSSIAN).replace("UTF-8", "KOI8-R") + ENTRIES
    path = written(tmp_path / "messages.po", text.replace("\n", "\r\n").replace("é", "e"), "koi8-r")
    content = read_catalogue(path)
    content.gaps[0].fill(["Открыть %s"])
    result = content.content()
    assert result.count(b"\r\n") == result.count(b"\n") == text.count("\n")
    assert 'msgstr "Открыть %s\\n"' in result.decode("koi8-r")
    content.gaps[0].fill(["Öffnen %s"])
    with pytest.raises(CorpusError, match=r"'Ö' of a translation is not in KOI8-R. Convert the file first: msgconv"):
        content.content()


CHARSET = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
OPEN = '\nmsgid "Open"\nmsgstr ""'


@pytest.mark.parametrize(
    "text",
    [
        '# first\n#. second\nmsgid "Close"\nmsgstr "Fermer"\n' + OPEN,
        "\ufeff# no header\n\n#\n" + OPEN + '\n\nmsgid "Close"\nmsgstr ""\n',
        OPEN + "\n\n" + CHARSET,
        CHARSET + OPEN + "\n\n# end\n# of the file\n",
        CHARSET + OPEN + '\n#~| msgid "Odd"\n#~ msgid "Old"\n#~ msgstr "Alt"\n',
        CHARSET + OPEN + "\n# directly after it\n" + OPEN.strip().replace("Open", "Shut"),
        CHARSET + '\nmsgid "A\x0b\u2028B"\r\nmsgstr "C"\r\n' + OPEN + "\n",
        CHARSET.replace("\n", "\r\n", 1) + '\nmsgid "A"\nmsgstr "B"\n\r\n' + OPEN.strip().replace("\n", "\r\n"),
        CHARSET + '\nmsgid "One"\nmsgid_plural "More"\nmsgstr[0] "x"\n\nmsgstr[1] ""\n# end',
    ],
)
def test_all_other_bytes_stay_in_unusual_catalogues(tmp_path, text):
    path = written(tmp_path / "a.po", text)
    expected = text
    for name in ("Open", "Close", "Shut"):
        for end in ("\n", "\r\n"):
            empty = f'msgid "{name}"{end}msgstr "'
            expected = expected.replace(f'{empty}"', f'#, fuzzy{end}{empty}‹{name}›"')
    if "More" in text:
        old = text[text.index('msgid "One') : text.index("\n# end")]
        expected = text.replace(old, "#, fuzzy\n" + old.replace('x"\n\n', 'x"\n').replace('""', '"‹More›"'))
    assert expected != text
    assert fill(path).decode() == expected


@pytest.mark.parametrize("name", ["a.po.gz", "a.POT.gz", "a.mo.gz"])
def test_compressed_catalogues_are_not_read_as_tables(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(CHARSET.encode()))
    with pytest.raises(CorpusError, match=rf"{name}: got a compressed (PO|MO) file; expected it without .gz. Run: gun"):
        list(CorpusSource.parse(str(path)).open("whole"))
    if ".mo" not in name:
        with pytest.raises(CorpusError, match="got a compressed PO file"):
            read_catalogue(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.po", 'msgid "a"\nnothing\n', "cannot be read .*line 2.*Check it with msgfmt"),
        (
            "a.po",
            HEADER.replace("RULE", "nplurals=2; plural=x;") + ENTRIES,
            "got the Plural-Forms 'nplurals=2; plural=x",
        ),
        ("a.mo", "not a catalogue", "cannot be read"),
        ("a.xlf", "<tmx/>", "got the element <tmx>; expected <xliff>"),
    ],
)
def test_damaged_catalogues(tmp_path, name, text, message):
    path = written(tmp_path / name, text)
    with pytest.raises(CorpusError, match=message):
        list(CatalogueCorpus(path))
    if not name.endswith("mo"):
        with pytest.raises(CorpusError, match=message):
            read_catalogue(path)


def test_only_po_and_xliff_are_filled(tmp_path):
    assert [kind_of(f"a.{end}") for end in ("po", "PO", "pot", "tmx.gz", "po.gz", "tsv", "gz")] == [
        "PO", "PO", "PO", "TMX", "PO", None, None,
    ]  # fmt: skip
    for name in ("a.tmx", "a.mo", "a.xlf.gz"):
        with pytest.raises(InputError, match=f"{name}: got a .* file; expected a PO or XLIFF file"):
            read_catalogue(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_catalogue(tmp_path / "a.po")


def test_a_filled_xliff_marks_what_needs_a_review(tmp_path):
    path = written(tmp_path / "a.xlf", XLIFF)
    content = read_catalogue(path)
    assert (content.translated, content.fuzzy, content.coded) == (1, 1, 1)
    texts = [("Go.", False), ('Open <g id="1">it</g> &amp; go<x id="2"/>', True)]
    assert [(gap.text, gap.markup) for gap in content.gaps] == texts
    content.gaps[0].fill(["Va & viens !"])
    content.gaps[1].fill([content.gaps[1].text.replace("Open", "Ouvre")])
    root = etree.fromstring(content.content())
    units = {unit.get("id"): unit for unit in root.iter("{*}trans-unit")}
    targets = {name: unit.find("{*}target") for name, unit in units.items()}
    assert targets["1"].text == "Va & viens !"
    assert [child.tag.rpartition("}")[2] for child in targets["2"]] == ["g", "x"]
    assert "".join(targets["2"].itertext()) == "Ouvre it & go"
    assert targets["1"].get("state") == targets["2"].get("state") == "needs-review-translation"
    assert targets["3"] is targets["6"] is None
    assert targets["5"].text == "Va !"
    unchanged = ["4", "5", "3", "6"]
    before = {unit.get("id"): unit for unit in etree.parse(str(path)).iter("{*}trans-unit")}
    assert [etree.tostring(units[name]) for name in unchanged] == [etree.tostring(before[name]) for name in unchanged]
    assert [child.tag.rpartition("}")[2] for child in units["2"]] == ["source", "target", "note"]


def test_a_filled_xliff_2_has_segments_in_their_initial_state(tmp_path):
    path = written(tmp_path / "a.xliff", XLIFF_2)
    content = read_catalogue(path, replace_fuzzy=True)
    assert [gap.text for gap in content.gaps][1:] == ["Stay."]
    for gap in content.gaps:
        gap.fill([sentence.replace("on", "au") for sentence in gap.sentences])
    segments = list(etree.fromstring(content.content()).iter("{*}segment"))
    assert [segment.get("state") for segment in segments] == ["initial", "final", "initial", None]
    assert ["".join(target.itertext()) for target in etree.fromstring(content.content()).iter("{*}target")] == [
        "Go au.", "J'ai perdu.", "Stay.",
    ]  # fmt: skip


def test_a_target_follows_a_segmented_source(tmp_path):
    segmented = '<source>Go.</source>\n<seg-source><mrk mtype="seg" mid="1">Go.</mrk></seg-source>\n  <note/>'
    content = fill(written(tmp_path / "a.xlf", XLIFF.replace("<source>Go.</source>", segmented))).decode()
    target = '<target state="needs-review-translation">‹Go.›</target>'
    assert segmented.replace("\n  <note/>", f"\n  {target}\n  <note/>") in content


def test_names_of_namespaces_are_escaped(tmp_path):
    text = XLIFF.replace("<xliff ", '<xliff xmlns:q="http://x?a=1&amp;b=2" ')
    content = fill(written(tmp_path / "a.xlf", text))
    assert b'>\xe2\x80\xb9Open <g id="1">it</g> &amp; go<x id="2"/>\xe2\x80\xba</target>' in content


@pytest.mark.parametrize(
    ("file", "group", "unit", "count"),
    [
        ("no", None, None, 0),
        ("no", None, "yes", 1),
        ("no", "yes", None, 1),
        ("yes", "no", None, 0),
        (None, "no", "yes", 1),
        (None, None, "no", 0),
        (None, None, None, 1),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_nearest_choice_of_translate_counts(tmp_path, version, file, group, unit, count):
    start = [XLIFF, XLIFF_2][version - 1].split("<file")[0]
    choices = [f' translate="{choice}"' if choice else "" for choice in (file, group, unit)]
    inner = "<segment><source>Go.</source></segment>" if version == 2 else "<source>Go.</source>"
    names = ["file", "group", "unit" if version == 2 else "trans-unit"]
    tags = [f"<{name}{choice}>" for name, choice in zip(names, choices, strict=True)]
    ends = [f"</{name}>" for name in reversed(names)]
    path = written(tmp_path / "a.xlf", start + "".join([*tags, inner, *ends]) + "</xliff>")
    assert len(read_catalogue(path).gaps) == count


def test_line_ends_within_tags_and_elements_become_spaces(tmp_path):
    text = XLIFF.replace('Open <g id="1">it</g>', '\n  Open <g\n id="1">the\n  door</g>\n\n')
    gap = read_catalogue(written(tmp_path / "a.xlf", text)).gaps[1]
    assert gap.sentences == ['Open <g id="1">the door</g> &amp; go<x id="2"/>']
    path = written(tmp_path / "a.po", CHARSET + '\nmsgid "<a\\n href=\\"x\\">Open\\n it</a>\\n"\nmsgstr ""\n')
    content = read_catalogue(path, markup=True)
    assert [gap.sentences for gap in content.gaps] == [['<a href="x">Open it</a>']]
    content.gaps[0].fill(["<b>Ouvre</b>"])
    assert 'msgstr "<b>Ouvre</b>\\n"' in content.content().decode()
    assert [len(gap.sentences) for gap in read_catalogue(path).gaps] == [3]


@pytest.mark.parametrize(("package", "name"), [("polib", "a.po"), ("lxml", "a.tmx")])
def test_a_missing_library_names_its_extra(tmp_path, monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    path = written(tmp_path / name, "")
    with pytest.raises(CorpusError, match=rf"{package} is not installed. Run: pip install .*\[catalogues\]"):
        list(CatalogueCorpus(path))

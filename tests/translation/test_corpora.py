import gzip
import hashlib
import io
import itertools
import zipfile

import pytest
from file_server import serving

from dikkat.translation import CorpusError, named
from dikkat.translation.data import named_corpora

LANGUAGES = ("en", "fr", "de")


def texts(part, language):
    return [f"{part} {language} {number}" for number in range(5)]


MULTI30K = {
    f"{part}.{language}.gz": gzip.compress("\n".join(texts(part, language)).encode(), mtime=0)
    for part in ("train", "val", "test_2016_flickr")
    for language in LANGUAGES
}
TEXT = "".join(f"Sentence {number}.\tPhrase {number}.\n" for number in range(2000))


def zipped(member):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(member, TEXT)
    return file.getvalue()


TATOEBA, EXPORT = zipped("fra-eng/fra.txt"), zipped("fra.txt")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DIKKAT_CACHE", str(tmp_path))
    return tmp_path / "corpora"


@pytest.fixture
def files(monkeypatch):
    """Small files in place of the real ones, and their sums."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in MULTI30K.items()}
    monkeypatch.setattr(named_corpora, "_MULTI30K_SHA256", sums)
    monkeypatch.setattr(named_corpora, "_TATOEBA_SHA1", hashlib.sha1(TATOEBA).hexdigest())
    with serving() as made:
        made.content = {f"/{name}": content for name, content in MULTI30K.items()} | {"/fra-eng.zip": TATOEBA}
        yield made


@pytest.mark.parametrize("target", ["fr", "de"])
def test_multi30k(files, target):
    for _ in range(2):
        found = named(f"multi30k-en-{target}", base=files.address)
        for corpus, part in ((found.training, "train"), (found.validation, "val"), (found.test, "test_2016_flickr")):
            assert list(corpus) == list(zip(texts(part, "en"), texts(part, target), strict=True))
        assert list(found.whole) == list(found.training)
    assert len(files.asked) == 6


def test_tatoeba_is_split_by_sentence_the_same_way_each_time(files, cache):
    found, again = named("tatoeba-fra-eng", base=files.address), named("tatoeba-fra-eng", base=files.address)
    whole = [tuple(line.split("\t")) for line in TEXT.splitlines()]
    assert list(found.whole) == whole
    parts = [list(part) for part in (found.training, found.validation, found.test)]
    assert sorted(itertools.chain(*parts)) == sorted(whole)
    assert [list(part) for part in (again.training, again.validation, again.test)] == parts
    assert all(2 <= len(part) <= 50 for part in parts[1:])
    assert found.training.fingerprint() == again.training.fingerprint() != found.validation.fingerprint()
    assert len(files.asked) == 1


def test_tatoeba_that_changed_since_is_refused(files, cache):
    named("tatoeba-fra-eng", base=files.address)
    other = zipped("fra-eng/fra.txt") + b"\0"
    (cache / "tatoeba-fra-eng" / "fra-eng.zip").write_bytes(other)
    with pytest.raises(CorpusError, match=r"got a file with sha1 .*; expected one with sha1"):
        named("tatoeba-fra-eng", base=files.address)


def test_a_newer_export_put_there_by_hand_is_used_and_told(files, cache):
    folder = cache / "tatoeba-fra-eng"
    folder.mkdir(parents=True)
    (folder / "fra-eng.zip").write_bytes(EXPORT)
    with pytest.warns(UserWarning, match=r"fra-eng\.zip: got a different edition of the corpus"):
        found = named("tatoeba-fra-eng", base=files.address)
    assert len(list(found.whole)) == 2000
    assert not files.asked


def test_a_newer_export_that_comes_from_the_network_is_refused(files):
    files.content["/fra-eng.zip"] = EXPORT
    with pytest.raises(CorpusError, match=r"fra-eng\.zip: got a file with sha1 .*; expected one with sha1 "):
        named("tatoeba-fra-eng", base=files.address)


@pytest.mark.parametrize(("content", "message"), [(zipped("other.txt"), "fra.txt is missing"), (b"text", "fra.txt is")])
def test_an_archive_without_the_file(files, monkeypatch, content, message):
    monkeypatch.setattr(named_corpora, "_TATOEBA_SHA1", hashlib.sha1(content).hexdigest())
    files.content["/fra-eng.zip"] = content
    with pytest.raises(CorpusError, match=message):
        named("tatoeba-fra-eng", base=files.address)


def patched(data, places):
    """An archive with other bytes at some places."""
    changed = bytearray(data)
    for place, value in places.items():
        changed[place : place + len(value)] = value
    return bytes(changed)


CENTRAL = TATOEBA.index(b"PK\x01\x02")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (patched(TATOEBA, {30 + len("fra-eng/fra.txt"): b"\xff" * 9}), "invalid block type"),  # of deflate
        (patched(TATOEBA, {6: b"\x01", CENTRAL + 8: b"\x01"}), "encrypted"),
        (patched(TATOEBA, {8: b"\x63", CENTRAL + 10: b"\x63"}), "compression method"),
        (patched(TATOEBA, {CENTRAL + 6: b"\xff"}), "fra.txt is missing"),  # the version that one needs to read it
    ],
)
def test_a_damaged_archive_is_named(files, monkeypatch, content, message):
    monkeypatch.setattr(named_corpora, "_TATOEBA_SHA1", hashlib.sha1(content).hexdigest())
    files.content["/fra-eng.zip"] = content
    with pytest.raises(CorpusError, match=rf"fra-eng\.zip: .*{message}.* Delete it to have it fetched again"):
        named("tatoeba-fra-eng", base=files.address)


def test_without_a_network_a_file_by_hand_is_enough(files, cache):
    folder = cache / "multi30k"
    folder.mkdir(parents=True)
    for name in MULTI30K:
        (folder / name).write_bytes(MULTI30K[name])
    files.content.clear()
    assert len(list(named("multi30k-en-de", base=files.address).training)) == 5
    (folder / "val.fr.gz").unlink()
    with pytest.raises(CorpusError, match=rf"by hand: {folder / 'val.fr.gz'} \(sha256 "):
        named("multi30k-en-fr", base=files.address)


def test_each_file_has_its_sum():
    assert all(len(value) == 64 for value in named_corpora._MULTI30K_SHA256.values())
    assert set(named_corpora._MULTI30K_SHA256) == set(MULTI30K)
    assert len(set(named_corpora._MULTI30K_SHA256.values())) == 9


@pytest.mark.parametrize(
    ("name", "message"), [("multi30k-en-fra", r"did you mean multi30k-en-fr\?"), ("x", "tatoeba-fra-eng, multi30k")]
)
def test_an_unknown_name(name, message):
    with pytest.raises(CorpusError, match=message):
        named(name)

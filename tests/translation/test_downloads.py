import hashlib
import resource
import socket
import threading

import pytest
from file_server import serving

from dikkat.translation import CorpusError
from dikkat.translation.data.downloads import Checksum, fetch

CONTENT = hashlib.shake_256(b"a file").digest(50_021)
SHA256 = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def files():
    with serving() as made:
        made.content["/a.gz"] = CONTENT
        yield made


def get(files, folder, checksum=SHA256, **more):
    path = folder / "a.gz"
    fetch(f"{files.address}/a.gz", path, checksum, **({"pause": 0.0, "timeout": 5.0} | more))
    return path


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_file_is_fetched_once(files, tmp_path):
    for _ in range(2):
        assert get(files, tmp_path).read_bytes() == CONTENT
    assert files.asked == [("/a.gz", None)]
    assert left(tmp_path) == ["a.gz"]


def test_a_file_put_there_by_hand_is_verified_and_used(files, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(CONTENT)
    get(files, tmp_path)
    path.write_bytes(CONTENT[:-1])
    found = hashlib.sha256(CONTENT[:-1]).hexdigest()
    with pytest.raises(
        CorpusError, match=rf"a\.gz: got a file with sha256 {found}; expected one with {SHA256}\. Delete"
    ):
        get(files, tmp_path)
    assert path.read_bytes() == CONTENT[:-1]  # it is the user's
    assert not files.asked


@pytest.mark.parametrize("kind", ["cut", "stall"])
def test_a_connection_that_breaks_or_stalls_goes_on_where_it_was(files, tmp_path, kind):
    files.faults = [(kind, 7001), (kind, 20_011)]
    assert get(files, tmp_path, timeout=4.0).read_bytes() == CONTENT
    assert files.asked == [("/a.gz", None), ("/a.gz", "bytes=7001-"), ("/a.gz", "bytes=27012-")]
    assert left(tmp_path) == ["a.gz"]


def test_the_next_call_goes_on_where_the_last_one_gave_up(files, tmp_path):
    files.faults = [("cut", 7001)]
    with pytest.raises(CorpusError, match="cannot fetch"):
        get(files, tmp_path, attempts=1)
    assert (tmp_path / "a.gz.part").read_bytes() == CONTENT[:7001]
    assert get(files, tmp_path).read_bytes() == CONTENT
    assert files.asked[-1] == ("/a.gz", "bytes=7001-")


def test_a_server_without_ranges_sends_all_of_it_again(files, tmp_path):
    files.ranges = False
    files.faults = [("cut", 30_011)]
    assert get(files, tmp_path).read_bytes() == CONTENT
    assert files.asked == [("/a.gz", None), ("/a.gz", "bytes=30011-")]


@pytest.mark.parametrize("beginning", [CONTENT, CONTENT + b"more"])
def test_a_beginning_with_nothing_to_come_behind_it(files, tmp_path, beginning):
    (tmp_path / "a.gz.part").write_bytes(beginning)
    assert get(files, tmp_path).read_bytes() == CONTENT


def test_a_beginning_of_another_file_is_not_kept(files, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(b"x" * 101)
    with pytest.raises(CorpusError, match=rf"got a file with sha256 .*; expected one with {SHA256}"):
        get(files, tmp_path)
    assert left(tmp_path) == []
    assert get(files, tmp_path).read_bytes() == CONTENT


def test_a_wrong_sum_deletes_what_came_and_says_both_sums_and_where_to_put_the_file(files, tmp_path):
    wrong = Checksum("sha1", "ab" * 20)
    found = hashlib.sha1(CONTENT).hexdigest()
    message = rf"got a file with sha1 {found}; expected one with {wrong}\. .*by hand: {tmp_path / 'a.gz'} \({wrong}\)"
    with pytest.raises(CorpusError, match=message):
        get(files, tmp_path, wrong)
    assert left(tmp_path) == []


def test_a_missing_file_is_asked_for_once(files, tmp_path):
    del files.content["/a.gz"]
    message = rf"{files.address}/a\.gz \(the server answered 404 Not Found\).*by hand: {tmp_path / 'a.gz'} "
    with pytest.raises(CorpusError, match=message):
        get(files, tmp_path)
    assert len(files.asked) == 1
    assert left(tmp_path) == []


def test_a_busy_server_is_asked_again(files, tmp_path):
    files.faults = [503, 429, 500]
    assert get(files, tmp_path).read_bytes() == CONTENT
    files.faults = [503, 503]
    (tmp_path / "a.gz").unlink()
    with pytest.raises(CorpusError, match="the server answered 503"):
        get(files, tmp_path, attempts=2)


def test_a_server_that_stays_silent_is_given_up(files, tmp_path):
    files.faults = [("stall", 0)] * 2
    with pytest.raises(CorpusError, match="the server was silent for too long"):
        get(files, tmp_path, attempts=2, timeout=1.0)


def test_without_a_server_the_error_says_where_to_put_the_file(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/a.gz"
    message = (
        rf"cannot fetch {address} \(.*refused.*\)\. Check the network and try again, or put the file there by hand"
    )
    with pytest.raises(CorpusError, match=message):
        fetch(address, tmp_path / "a.gz", SHA256, pause=0.0)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/a.gz", "http://", "nonsense"])
def test_an_address_that_is_none(tmp_path, address):
    with pytest.raises(CorpusError, match="cannot fetch"):
        fetch(address, tmp_path / "a.gz", SHA256, pause=60.0)


def test_a_full_disk_keeps_nothing_and_says_which_folder(files, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match=rf"a\.gz\.part cannot be written.*DIKKAT_CACHE.*{tmp_path}"):
            get(files, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(tmp_path) == []
    assert get(files, tmp_path).read_bytes() == CONTENT


def test_of_two_at_once_one_waits_for_the_other(files, tmp_path):
    files.faults = [("stall", 7001)]
    threads = [threading.Thread(target=get, args=(files, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    files.go_on.set()
    for thread in threads:
        thread.join(20)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert [asked for _, asked in files.asked] in ([None], [None, "bytes=7001-"])

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
    fetch(f"{files.address}/a.gz", path, checksum, **({"timeout": 5.0} | more))
    return path


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_file_is_fetched_once(files, tmp_path):
    for _ in range(2):
        assert get(files, tmp_path).read_bytes() == CONTENT
    assert files.asked == ["/a.gz"]
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


@pytest.mark.parametrize(("kind", "reason"), [("cut", "peer closed connection"), ("stall", "did not answer in time")])
def test_of_a_connection_that_breaks_or_stalls_nothing_is_left(files, tmp_path, kind, reason):
    files.faults = [(kind, 7001)]
    with pytest.raises(CorpusError, match=rf"cannot fetch {files.address}/a\.gz \(.*{reason}.*\)\. Check the network"):
        get(files, tmp_path, timeout=1.0)
    assert left(tmp_path) == []
    assert get(files, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == ["a.gz"]


def test_what_a_killed_download_left_is_written_over(files, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(b"x" * 60_000)
    assert get(files, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == ["a.gz"]


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


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_refuses_is_quoted(files, tmp_path, status):
    files.faults = [status]
    with pytest.raises(CorpusError, match=f"the server answered {status} "):
        get(files, tmp_path)
    assert left(tmp_path) == []


def test_without_a_server_the_error_says_where_to_put_the_file(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/a.gz"
    message = (
        rf"cannot fetch {address} \(.*refused.*\)\. Check the network and try again, or put the file there by hand"
    )
    with pytest.raises(CorpusError, match=message):
        fetch(address, tmp_path / "a.gz", SHA256)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/a.gz", "http://", "nonsense"])
def test_an_address_that_is_none(tmp_path, address):
    with pytest.raises(CorpusError, match="cannot fetch"):
        fetch(address, tmp_path / "a.gz", SHA256)


def test_a_full_disk_keeps_nothing_and_says_which_folder(files, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match=rf"a\.gz cannot be written.*DIKKAT_CACHE.*{tmp_path}"):
            get(files, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(tmp_path) == []
    assert get(files, tmp_path).read_bytes() == CONTENT


def test_of_two_at_once_one_waits_for_the_other(files, tmp_path):
    files.faults = [("stall", 50_021)]
    threads = [threading.Thread(target=get, args=(files, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    files.go_on.set()
    for thread in threads:
        thread.join(20)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert files.asked == ["/a.gz"]

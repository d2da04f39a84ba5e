import csv
import decimal
import gzip
import io
import os
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dikkat.errors import InputError
from dikkat.regression.dialects import FormOptions
from dikkat.regression.tables import Table, write_columns

HOMES = "city,area,price,sold\nParis,30,310.5,true\nLyon,50,240,false\n"


@pytest.fixture
def table(tmp_path):
    def make(content, name="t.csv"):
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return Table(tmp_path / name)

    return make


@pytest.mark.parametrize("name", ["t.csv", "t.CSV", "t.tsv", "t.csv.gz", "t.tsv.gz"])
def test_text_tables(table, name):
    read = table(HOMES.replace(",", "\t") if "tsv" in name else HOMES, name)
    assert len(read) == 2
    assert read.names == ["city", "area", "price", "sold"]
    assert read.numeric() == ["area", "price", "sold"]
    assert read.numbers("price", "area", "sold").tolist() == [[310.5, 30, 1], [240, 50, 0]]
    assert read.suffix == name.lower()[1:5]


def test_parquet_tables_of_every_type_of_number(tmp_path):
    columns = {f"{kind}": pa.array([1, 2, 3], kind) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.float64())}
    columns["decimal"] = pa.array([decimal.Decimal(number) for number in "123"])
    columns["bool"] = pa.array([True, False, True])
    columns["text"] = pa.array(["1", "2", "3"])
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    read = Table(tmp_path / "t.parquet")
    assert read.numeric() == [name for name in columns if name != "text"]
    found = read.numbers(*read.numeric())
    assert found.dtype == np.float64
    assert found[:, :-1].tolist() == [[i] * 5 for i in (1, 2, 3)]
    assert found[:, -1].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", ["a"], "cannot be read as UTF-8 with commas"),
        ("a,b\n", ["a"], "got no rows; expected at least one"),
        ("a,b\n1,2\n3\n", ["a"], "Expected 2 columns, got 1"),
        ("aged,b\n1,2\n", ["age"], "there is no column 'age'; did you mean 'aged'? There are: aged, b"),
        ("q,b\n1,2\n", ["age"], "there is no column 'age'. There are: q, b"),
        (",".join(f"c{i}" for i in range(13)) + "\n" + ",".join("1" * 13) + "\n", ["zz"], "c10, c11, …"),
        ("a,a\n1,2\n", ["a"], "2 columns are called 'a'; rename all but one"),
        ("a,b\nParis,2\n", ["a"], "column 'a' holds text ('Paris' in row 1); expected numbers"),
        ("a\n2020-01-31\n", ["a"], "column 'a' holds date32[day] ('2020-01-31' in row 1)"),
        ("a,b\n1,2\n,3\ninf,3\n", ["b", "a"], "column 'a' has 1 of 3 cells infinite, the first in row 3; correct them"),
        ("a,b\n1,2\n?,3\n4,3\n", ["a"], "column 'a' holds text in 1 of 3 cells ('?' in row 2); expected numbers"),
        (
            "a\n2024-01-31\n2024-01-30\nsoon\n",
            ["a"],
            "column 'a' holds text in 1 of 3 cells ('soon' in row 3); expected",
        ),
        (b"a\x81,b\n1,2\n", ["b"], "got text in an unknown encoding; expected UTF-8, UTF-16"),
        (b"\xff\xfea", ["b"], "got text in an unknown encoding"),
    ],
)
def test_bad_tables_are_one_line_that_says_what_to_do(table, content, columns, message):
    with pytest.raises(InputError) as caught:
        table(content).numbers(*columns)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(caught.value).partition("t.csv")[0] + "t.csv: ")


def test_a_first_line_of_numbers_workbooks_and_other_endings(tmp_path):
    (tmp_path / "t.csv").write_text("0.0,1.5,-2e3\n1,2,3\n")
    with pytest.raises(InputError, match=r"the first line looks like numbers \(0\.0, 1\.5, -2e3\); expected the names"):
        Table(tmp_path / "t.csv")
    (tmp_path / "w.csv").write_bytes(b"PK\x03\x04\x00")
    with pytest.raises(InputError, match="save the table as CSV"):
        Table(tmp_path / "w.csv")
    (tmp_path / "t.txt").write_text("a\tb\n1\t2\n")
    (tmp_path / "t.dat").write_text("a;b\n1;2\n")
    (tmp_path / "T.CSV.GZ").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    for name in ("t.txt", "t.dat", "T.CSV.GZ"):
        assert Table(tmp_path / name).numbers("a", "b").tolist() == [[1, 2]]


def test_cells_that_stand_for_nothing_are_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,code,price\n-999.0,x,007,1.000\n2.5, ? ,012,?\n3,y,?,2.000\n")
    assert Table(path).numeric() == ["a"]
    read = Table(path, FormOptions(na=("-999", "?")))
    np.testing.assert_equal(read.numbers("a", "price", missing=True), [[np.nan, 1], [2.5, np.nan], [3, 2]])
    frame = read.frame({"b": "category", "code": "category"}, True, {}, ["b", "code"])
    assert frame.to_pydict() == {"b": ["x", None, "y"], "code": ["007", "012", None]}
    read.write(path, {})
    assert path.read_text().splitlines()[2] == "2.5, ? ,012,?"


def test_numbers_that_stand_for_nothing_however_written(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1.000,5;x\n-9.999;y\n2.500;?\n")
    read = Table(tmp_path / "t.csv", FormOptions(na=("-9999", "?")))
    np.testing.assert_equal(read.numbers("a", missing=True), [[1000.5], [np.nan], [2500]])
    pq.write_table(pa.table({"a": [1.0, -999.0], "b": pa.array(["?", "y"], pa.large_string())}), tmp_path / "t.parquet")
    read = Table(tmp_path / "t.parquet", FormOptions(na=("-999", "?")))
    np.testing.assert_equal(read.numbers("a", missing=True), [[1], [np.nan]])
    assert read.typed.column("b").null_count == 1


def test_parquet_texts_that_are_dates(tmp_path):
    columns = {
        "iso": pa.array(["2024-01-31", None, "2024-03-01 06:30"]),
        "day first": pa.array(["31.1.2024", "2.3.2024", "NA"]),
        "large": pa.array(["2024-01-31", "2024-02-01", "2024-03-02"], pa.large_string()),
        "version": pa.array(["1.2.34", "1.2.35", "1.2.36"]), "doubtful": pa.array(["1/2/2024", "2/3/2024", "3/4/2024"]),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    read = Table(tmp_path / "t.parquet")
    assert [read.kind(name) for name in columns] == ["date"] * 3 + ["category"] * 2
    frame = read.frame({"iso": "date", "day first": "date", "large": "date"}, True, {}, [])
    moments = [frame.column(name).to_numpy().astype("datetime64[m]") for name in ("iso", "day first")]
    expected = [["2024-01-31T00:00", "NaT", "2024-03-01T06:30"], ["2024-01-31T00:00", "2024-03-02T00:00", "NaT"]]
    np.testing.assert_array_equal(moments, np.array(expected, "datetime64[m]"))
    with pytest.raises(InputError, match="'doubtful' holds dates that can be read in two ways"):
        read.usable()
    read.write(tmp_path / "out.parquet", {"y": np.ones(3)})
    assert pq.read_table(tmp_path / "out.parquet").drop(["y"]).equals(pa.table(columns))


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    content = "a,b\n" + "".join(f"{k},{k}\n" for k in range(4000))
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(content,))
    writer.start()
    assert Table(tmp_path / "pipe").numbers("a")[:, 0].tolist() == list(range(4000))
    writer.join()


def test_other_kinds_of_files(tmp_path):
    for name in ("t.xlsx", "t", "t.parquet.gz"):
        (tmp_path / name).write_bytes(b"PK\x03\x04\x00")
        with pytest.raises(InputError, match=r"a spreadsheet or a zip file|not one compressed by gzip"):
            Table(tmp_path / name)
    (tmp_path / "t.out").write_text(HOMES)
    pq.write_table(pa.table({"area": [30, 50]}), tmp_path / "part-0")
    for name, suffix in (("t.out", ".csv"), ("part-0", ".parquet")):
        read = Table(tmp_path / name)
        assert (read.suffix, read.numbers("area").tolist()) == (suffix, [[30], [50]])
        with pytest.raises(InputError, match=r"expected the ending \.csv, \.tsv"):
            read.write(tmp_path / "new", {})
    (tmp_path / "t.parquet").write_text(HOMES)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        Table(tmp_path / "t.parquet")
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    footer = int.from_bytes(content[-8:-4], "little")
    (tmp_path / "t.parquet").write_bytes(content[: -8 - footer] + b"\xff" * footer + content[-8:])
    with pytest.raises(InputError, match=r"t\.parquet: cannot be read as Parquet"):
        Table(tmp_path / "t.parquet")
    with pytest.raises(FileNotFoundError) as caught:
        Table(tmp_path / "none.csv")
    assert caught.value.filename == str(tmp_path / "none.csv")


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.parquet"])
def test_a_table_is_written_with_columns_on_the_right(table, tmp_path, name):
    table(HOMES).write(tmp_path / name, {"a": np.array([0.1, np.nan]), "b": np.array([1e-300, -2.0])})
    path = tmp_path / name
    frame = pd.read_parquet(path) if name.endswith("parquet") else pd.read_csv(path, sep="\t" if "tsv" in name else ",")
    assert list(frame.columns) == ["city", "area", "price", "sold", "a", "b"]
    assert frame["city"].tolist() == ["Paris", "Lyon"]
    assert frame["sold"].tolist() == [True, False]
    np.testing.assert_array_equal(frame["a"], [0.1, np.nan])
    np.testing.assert_array_equal(frame["b"], [1e-300, -2.0])
    assert Table(path).typed["a"].null_count == 1


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_every_number_comes_back_bit_for_bit(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("numbers") / "t.csv"
    write_columns(path, {"a": np.array(numbers)})
    assert [float(row[0]) for row in list(csv.reader(io.StringIO(path.read_text())))[1:]] == numbers
    np.testing.assert_array_equal(Table(path).numbers("a")[:, 0], numbers)


TOWNS = "Ville;Fläche;Preis\nZürich;30;310.5\nLyon;50;240\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_text_is_read_and_written_as_it_came(table, tmp_path, encoding, name):
    read = table(TOWNS.encode(encoding), name)
    assert read.names == ["Ville", "Fläche", "Preis"]
    assert read.numbers("Fläche", "Preis").tolist() == [[30, 310.5], [50, 240]]
    read.check_writable(tmp_path / "out.csv", ["Preis_predicted"])
    read.write(tmp_path / "out.csv", {"Preis_predicted": np.array([1.5, 2.0])})
    content = (tmp_path / "out.csv").read_bytes()
    rows = list(csv.reader(io.StringIO(content.decode(encoding)), delimiter=";"))
    assert rows == [
        ["Ville", "Fläche", "Preis", "Preis_predicted"], ["Zürich", "30", "310.5", "1.5"], ["Lyon", "50", "240", "2"]
    ]  # fmt: skip
    assert content.startswith("".encode(encoding))  # with the mark, where there was one


def test_cells_come_back_as_they_were_and_leading_zeros_are_no_number(table, tmp_path):
    first, second = '02283,True,2020-01-01T00:00:00Z,0.090,"a, b"', "10115,False,2020-02-01T00:00:00Z,1.50,NA"
    rows = ["zip,flag,when,share,note", first, second]
    read = table("\n".join(rows) + "\n")
    assert read.usable("note") == (["flag", "when", "share"], {"zip": "holds identifiers ('02283' in row 1)"})
    read.write(tmp_path / "out.csv", {"more": np.array([2.5, np.nan])})
    assert (tmp_path / "out.csv").read_text() == f"{rows[0]},more\n{rows[1]},2.5\n{rows[2]},\n"


def test_whole_numbers_behind_semicolons_keep_the_decimal_point(table, tmp_path):
    """Nothing in them says that decimals have a comma."""
    table("a;b\n1;2\n").write(tmp_path / "out.csv", {"c": np.array([0.25])})
    assert (tmp_path / "out.csv").read_text().splitlines()[1].endswith(";0.25")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a;b\n1;2\n", ["a", "b"]), ("a;b\n1,5;2,5\n", ["a", "b"]), ("a\tb\n1\t2\n", ["a", "b"]),
        ('"a;x",b\n1,2\n', ["a;x", "b"]), ("a;x,b;\n1,2\n", ["a;x", "b;"]), ("a;x\n1\n", ["a;x"]),
        ("a,b\r\n1,2\r\n", ["a", "b"]),
    ],
)  # fmt: skip
def test_what_stands_between_the_columns(table, content, names):
    assert table(content).names == names


def test_parquet_may_have_several_columns_of_a_name_and_be_a_folder(tmp_path):
    pq.write_table(pa.table([[1.0], [2.0]], names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="2 columns are called 'a'"):
        Table(tmp_path / "t.parquet").numbers("a")
    (tmp_path / "f.parquet").mkdir()
    for part in (1.0, 2.0):
        pq.write_table(pa.table({"a": [part]}), tmp_path / "f.parquet" / f"{part}.parquet")
    assert sorted(Table(tmp_path / "f.parquet").numbers("a")[:, 0]) == [1, 2]


def test_what_columns_can_be_used_for(tmp_path, table):
    content = "n,town,day,none,grade,kind,\n1,Lyon,2020-01-31,,7b,a,1\n2,Bursa,2020-02-01,,3,b,2\n"
    content += "3,8,2020-02-01,,c,a,3\n4,Ulm,2020-02-01,,c,a,3\n"
    assert table(content).usable("grade") == (
        ["n", "day", "kind"],
        {"town": "holds text ('Lyon' in row 1)", "none": "is empty", "": "has no name"},
    )
    kinds = pa.array(["low", "high", "low", "high"]).dictionary_encode()
    columns = {"n": [1, 2, 3, 4], "kind": kinds, "list": [[1], [2], [3], [4]], "same": ["a"] * 4}
    pq.write_table(pa.table(columns), tmp_path / "k.parquet")
    used, left_out = Table(tmp_path / "k.parquet").usable()
    assert used == ["n", "kind"]
    assert left_out["same"] == "holds text ('a' in row 1), the same in all rows"
    assert left_out["list"].startswith("holds list")


def test_a_column_of_numbers_but_for_some_cells_is_not_left_out(table, tmp_path):
    cells = [*map(str, range(10)), "?", "1O", "-", "n.a."]
    with pytest.raises(InputError) as caught:
        table("n,age\n" + "".join(f"1,{cell}\n" for cell in cells)).usable()
    assert "t.csv: column 'age' holds text in 4 of 14 cells ('?' in row 11, '1O' in row 12, '-' in row 13, …)" in str(
        caught.value
    )
    assert caught.value.args[0].endswith(
        "; correct it (write dates as 2020-01-31), leave it out with --without, or take its cells as categories with "
        "--categorical age"
    )
    assert table("n,age,town\n1,2,Lyon\n2,?,Bursa\n3,4,Bursa\n").usable("age") == (
        ["n"],
        {"town": "holds text ('Lyon' in row 1)"},
    )
    pq.write_table(pa.table({"n": [1, 2], "code": ["1", "2"]}), tmp_path / "k.parquet")
    with pytest.raises(InputError, match=r"column 'code' holds numbers as text \('1' in row 1\)"):
        Table(tmp_path / "k.parquet").usable()


def test_what_cannot_be_written_is_known_before(table, tmp_path):
    read = table(TOWNS.encode("cp1252"))
    with pytest.raises(InputError, match="cannot be written as cp1252, the table's encoding, which has no 'ş'"):
        read.check_writable(tmp_path / "out.csv", ["yaş"])
    pq.write_table(pa.table({"n": [1, 2], "list": [[1], [2]]}), tmp_path / "k.parquet")
    lists = Table(tmp_path / "k.parquet")
    lists.check_writable(tmp_path / "out.parquet", ["y"])
    with pytest.raises(InputError, match="cannot be written as csv"):
        lists.check_writable(tmp_path / "out.csv", ["y"])


def test_a_damaged_gz(tmp_path):
    for data in (b"no gzip", gzip.compress(b"a,b\n1,2\n")[:-9]):
        (tmp_path / "t.csv.gz").write_bytes(data)
        with pytest.raises(InputError, match="damaged file, or not one compressed by gzip"):
            Table(tmp_path / "t.csv.gz")


def test_a_code_among_codes_is_no_missing_cell(table):
    read = table("country,size,y\nNA,NA,1\nDE,large,2\nFR,small,3\nNA,NA,4\n")
    frame = read.frame({"country": "category", "size": "category"}, True, {}, ["country", "size"])
    assert frame.column("country").to_pylist() == ["NA", "DE", "FR", "NA"]
    assert frame.column("size").to_pylist() == [None, "large", "small", None]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["18,9%", "7%", "101,25%"], [18.9, 7, 101.25]),
        (["257.884,35 EUR", "1.000,5 EUR", "12 EUR"], [257884.35, 1000.5, 12]),
        (["$456,677", "-$1,000.5", "$3"], [456677, -1000.5, 3]),
        (["€ 5", "€ 7", "€ 1.5"], [5, 7, 1.5]),
    ],
)
def test_percent_and_currency_are_read(table, cells, expected):
    read = table("x;y\n" + "".join(f"{cell};{row}\n" for row, cell in enumerate(cells)))
    assert read.numbers("x")[:, 0].tolist() == expected


def test_columns_of_several_currencies_are_no_numbers(table):
    assert table("x,y\n$5,1\n5 EUR,2\n").numeric() == ["y"]

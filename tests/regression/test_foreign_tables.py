"""Tables as people and programs of many countries write them: the right numbers, or one clear line."""

import gzip

import numpy as np
import pytest

from dikkat.errors import InputError
from dikkat.regression.dialects import FormOptions
from dikkat.regression.tables import Table

AREA, PRICE = [1250.5, 80.25, 12.0, 999.75], [3100.0, 1240.5, 95.0, 2000.25]


def _text(delimiter=",", decimal=".", group="", names=("town", "area", "price"), ends="\n", quote=""):
    def number(value):
        return f"{value:,.2f}".replace(",", "\0").replace(".", decimal).replace("\0", group)

    towns = ["Zürich", "Köln", "Nîmes", "Ulm"]
    rows = [[town, number(area), number(price)] for town, area, price in zip(towns, AREA, PRICE, strict=True)]
    return ends.join(delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in [names, *rows]) + ends


RIGHT = {
    "commas": _text(),
    "commas, quoted, thousands": _text(group=",", quote='"'),
    "semicolons, decimal commas": _text(";", ","),
    "semicolons, decimal commas, points between thousands": _text(";", ",", "."),
    "semicolons, decimal commas, spaces between thousands": _text(";", ",", " "),
    "semicolons, decimal commas, narrow spaces between thousands": _text(";", ",", "\u202f"),
    "semicolons, decimal points, apostrophes between thousands": _text(";", ".", "'"),
    "semicolons, decimal points, commas between thousands": _text(";", ".", ","),
    "tabs in a .csv": _text("\t"),
    "tabs, decimal commas": _text("\t", ","),
    "bars": _text("|"),
    "bars, decimal commas, points between thousands": _text("|", ",", "."),
    "a first line for a spreadsheet": "sep=;\n" + _text(";", ","),
    "ends of lines of Windows": _text(";", ",", ends="\r\n"),
    "ends of lines of old Macs": _text(ends="\r"),
    "space around names": _text(names=("town", " area", "price  ")),
    "quoted names": _text(";", ",", quote='"'),
    "UTF-8 with a mark": _text(";", ",").encode("utf-8-sig"),
    "UTF-16 with a mark": _text("\t").encode("utf-16"),
    "Windows-1252": _text(";", ",").encode("cp1252"),
    "compressed": gzip.compress(_text().encode()),
    "a line break in a cell": _text(quote='"').replace("Nîmes", "Nîmes\nGard"),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_the_right_numbers(tmp_path, kind):
    path = tmp_path / ("t.csv.gz" if kind == "compressed" else "t.csv")
    content = RIGHT[kind]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = Table(path)
    assert table.names == ["town", "area", "price"]
    np.testing.assert_array_equal(table.numbers("area", "price"), np.column_stack([AREA, PRICE]))
    assert str(table.columns.column("town")[0]) == "Zürich"
    again = tmp_path / "again.csv"
    table.write(again, {"more": np.array(AREA)})
    np.testing.assert_array_equal(Table(again).numbers("area", "more"), np.column_stack([AREA, AREA]))


WRONG = {
    "1,234 between tabs": ("x\ty\n1,234\t2\n5,678\t3\n", "got numbers such as 1,234, which may be 1.234 or 1234"),
    "1.234 between semicolons": ("x;y\n1.234;2\n5.678;3\n", "--text decimal=. or --text thousands=."),
    "1.234 between tabs": ("x\ty\n1.234\t2\n5.678\t3\n", "got numbers such as 1.234, which may be 1.234 or 1234"),
    "1.234 between bars": ("x|y\n1.234|2\n5.678|3\n", "--text decimal=. or --text thousands=."),
    "1,234 in quotes between commas": ('x,y\n"1,234",2\n"5,678",3\n', "which may be 1.234 or 1234"),
    "months": ("x,y\n2020-01,2\n2020-02,3\n2020-12,4\n", "holds months without a day ('2020-01')"),
    "days and months that may be exchanged": ("x,y\n01/02/2020,2\n03/04/2020,3\n", "in two ways ('01/02/2020')"),
    "UTF-16 without a mark": ("x,y\n1,2\n".encode("utf-16-le"), "or add --text encoding=NAME"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\x81\x8d", "text in an unknown encoding"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_one_clear_line(tmp_path, kind):
    content, message = WRONG[kind]
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        Table(path).usable()
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "asked", "expected"),
    [
        ("x\ty\n1,234\t2\n", FormOptions(decimal=","), [1.234, 2]),
        ("x\ty\n1,234\t2\n", FormOptions(thousands=","), [1234, 2]),
        ("x;y\n1.234;2\n", FormOptions(thousands="."), [1234, 2]),
        ("x;y\n1.234;2\n", FormOptions(decimal="."), [1.234, 2]),
        ("x:y\n1:2\n", FormOptions(delimiter=":"), [1, 2]),
        ("x;y\nč;2\n".encode("cp1250"), FormOptions(encoding="cp1250"), [None, 2]),
    ],
)
def test_what_a_person_says_counts(tmp_path, content, asked, expected):
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    table = Table(tmp_path / "t.csv", asked)
    for name, number in zip("xy", expected, strict=True):
        if number is None:
            assert str(table.columns.column(name)[0]) == "č"
        else:
            assert table.numbers(name)[0, 0] == number


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('x,y\n"0,567",2\n"0,123",3\n', [0.567, 2]), ('x,y\n"1,234",2\n"0,567",3\n', [1.234, 2]),
        ('x,y\n"1,234",2.5\n"5,678",3\n', [1234, 2.5]), ('x,y\n"1,234",2\n"5,678,900",3\n', [1234, 2]),
        ("x,y\n1.234,2\n5.678,3\n", [1.234, 2]), ("x;y\n1.234;2,5\n5.678;3\n", [1234, 2.5]),
        ("x\ty\n1.234\t2\n0.567\t3\n", [1.234, 2]), ("x\ty\n1.234\t2\n5.67\t3\n", [1.234, 2]),
        ("x|y\n1,234|2.5\n5,678|3\n", [1234, 2.5]),
    ],
)  # fmt: skip
def test_what_other_numbers_say_of_a_mark(tmp_path, content, expected):
    (tmp_path / "t.csv").write_text(content)
    assert Table(tmp_path / "t.csv").numbers("x", "y")[0].tolist() == expected


def test_what_is_no_number_stays_what_it_is(tmp_path):
    (tmp_path / "t.csv").write_text("phone;code;y\n030 123 45;1.234.5;2\n040 99 88;7.1;3\n")
    assert Table(tmp_path / "t.csv").numeric() == ["y"]


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        (["31.12.2019", "1.2.2020"], "2019-12-31"),
        (["5.4.2020", "1.2.2020"], "2020-04-05"),
        (["31/12/2019", "01/02/2020"], "2019-12-31"),
        (["12/31/2019", "01/02/2020"], "2019-12-31"),
        (["31-12-2019 06:30", "01-02-2020 00:00"], "2019-12-31 06:30"),
        (["2019-12-31", "2020-02-01"], "2019-12-31"),
    ],
)
def test_dates(tmp_path, cells, first):
    (tmp_path / "t.csv").write_text("day,y\n" + "".join(f"{cell},1\n" for cell in cells))
    table = Table(tmp_path / "t.csv")
    assert table.kind("day") == "date"
    found = table.frame({"day": "date"}, False, {}, ()).column("day").to_numpy()[0]
    assert found == np.datetime64(first)
    assert str(table.columns.column("day")[0]).startswith(cells[0][:4])


def test_what_is_no_date_stays_text(tmp_path):
    (tmp_path / "t.csv").write_text("day,y\n31.02.2020,1\n13/13/2020,2\n")
    assert Table(tmp_path / "t.csv").kind("day") == "category"

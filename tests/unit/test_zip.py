"""The zip around an artifact: other tools open it, it is exact to the byte, and it goes past 4 GiB."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from pathlib import Path

import pytest

from rig.errors import FormatError
from rig.model.zip import ALIGN, Member, comment_of, difference, layout, members_of

COMMENT = b"a comment"


def build(contents: dict[str, bytes], comment: bytes = COMMENT) -> bytes:
    members = tuple(Member(name, len(data), zlib.crc32(data)) for name, data in contents.items())
    plan = layout(members, comment)
    parts = [part for header, data in zip(plan.headers, contents.values(), strict=True) for part in (header, data)]
    whole = b"".join((*parts, plan.directory))
    assert len(whole) == plan.size
    return whole


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_the_standard_library_opens_it(size: int) -> None:
    contents = {"first.json": b"{}", "second.bin": bytes(range(256)) * (size // 256) + b"x" * (size % 256), "last": b""}
    whole = build(contents)
    with zipfile.ZipFile(io.BytesIO(whole)) as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == contents
        assert opened.comment == COMMENT
        assert all(info.compress_type == zipfile.ZIP_STORED for info in opened.infolist())
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in opened.infolist())


def test_members_are_aligned_and_read_back() -> None:
    contents = {f"member{i}": bytes([i]) * (i * 37) for i in range(5)}
    whole = build(contents)
    members = members_of(whole[-2048:], len(whole))
    layout(members, COMMENT)
    assert [member.name for member in members] == list(contents)
    for member in members:
        assert member.offset % ALIGN == 0
        assert whole[member.offset : member.offset + member.nbytes] == contents[member.name]
        assert member.crc32 == zlib.crc32(contents[member.name])


def test_equal_contents_give_equal_bytes() -> None:
    assert build({"a": b"1", "b": b"2"}) == build({"a": b"1", "b": b"2"})


def test_past_4_gib_in_a_sparse_file(tmp_path: Path) -> None:
    large, tail = (1 << 32) + 4096, b"the end"
    members = (Member("large", large, 0), Member("after", len(tail), zlib.crc32(tail)))
    plan = layout(members, COMMENT)
    path = tmp_path / "large.zip"
    with path.open("wb") as file:
        for header, member in zip(plan.headers, members, strict=True):
            file.seek(member.start)
            file.write(header)
        file.seek(members[0].offset + large - 3)
        file.write(b"abc")
        file.seek(members[1].offset)
        file.write(tail + plan.directory)
    assert path.stat().st_size == plan.size > 1 << 32
    with zipfile.ZipFile(path) as opened:
        assert [(i.filename, i.file_size) for i in opened.infolist()] == [("large", large), ("after", len(tail))]
        assert opened.read("after") == tail
        with opened.open("large") as stored:
            assert stored.read(4) == bytes(4)
    fd = os.open(path, os.O_RDONLY)
    try:
        end = os.pread(fd, 4096, plan.size - 4096)
    finally:
        os.close(fd)
    again = layout(members_of(end, plan.size), COMMENT)
    assert again.headers == plan.headers
    assert again.directory == plan.directory


def test_the_comment_is_found_only_where_it_ends_the_file() -> None:
    whole = build({"a": b"PK\5\6" + bytes(30)})
    assert comment_of(whole) == COMMENT
    assert comment_of(whole + b"x") is None
    assert comment_of(whole[:-1]) is None
    assert comment_of(b"") is None
    tricky = b"xPK\5\6" + bytes(16) + b"\2\0zz"
    assert comment_of(build({"a": b""}, tricky)) == b"zz"


@pytest.mark.parametrize("cut", [1, 5, 21, 30])
def test_a_cut_file_has_no_end(cut: int) -> None:
    whole = build({"a": b"content"})[:-cut]
    with pytest.raises(FormatError, match=f"byte {len(whole)}: there is no end record"):
        members_of(whole, len(whole))


def test_a_damaged_directory_says_where() -> None:
    whole = bytearray(build({"a": b"content"}))
    at = whole.rindex(b"PK\1\2")
    whole[at] ^= 1
    with pytest.raises(FormatError, match=rf"byte {at} \(directory\): an entry of the directory is damaged"):
        members_of(bytes(whole), len(whole))


def test_an_end_record_that_cannot_be_says_so() -> None:
    whole = bytearray(build({"a": b"content"}))
    at = whole.rindex(b"PK\5\6")
    whole[at + 16] = 0xEE  # the directory's offset
    with pytest.raises(FormatError, match=rf"byte {at}: the end record states 1 members"):
        members_of(bytes(whole), len(whole))


def test_difference() -> None:
    assert difference(b"abc", b"abc") == -1
    assert difference(b"abc", b"abd") == 2
    assert difference(b"abc", b"ab") == 2

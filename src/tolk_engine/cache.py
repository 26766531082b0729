"""What was made once: entries in a folder, named by all that decides them.

Entries are the text of a kernel and the object of several texts. A key is a digest over everything that the bytes
depend on, so that a hit is what a miss would have made. Any number of processes may use one folder: an entry appears
whole or not at all, is checked when it is read, and is removed where it is damaged. A folder that cannot be used is no
error: then nothing is kept. Entries hold text, JSON and objects, and are never unpickled.

The environment says where and how much: ``RIG_CACHE_DIR`` is the folder, else ``$XDG_CACHE_HOME/rig``, else
``~/.cache/rig``; ``RIG_CACHE_SIZE`` bounds it (``512M``, ``2G``, or bytes); ``RIG_CACHE=0`` keeps nothing.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from rig.errors import Invalid

__all__ = ["LIMIT", "Cache", "Usage", "is_key", "key", "of_environment", "place"]

LIMIT = 1 << 30
"""How many bytes a cache holds where nobody says another number."""

_MAGIC = b"\x93RIGCCH\n"
_CHECK = 32  # bytes of the digest behind the magic
_DIGITS = 64
_KEY = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")
_GROUP = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(rf"[0-9a-f]{{{_DIGITS - 2}}}\.(?:text|object)")
_NEW = ".new-"  # how the name of an entry begins while it is written
_ABANDONED = 3600.0  # seconds after which nobody writes at it any more
_ROOM = 0.9  # the share of the limit that stays when something has to go
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def key(*parts: str | bytes) -> str:
    """Return the digest of `parts`, each with its length: 64 hexadecimal digits."""
    digest = blake2b(digest_size=_DIGITS // 2)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def is_key(text: str) -> bool:
    """Tell whether `text` has the form of a digest: a name that means the same in every process."""
    return _KEY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a cache holds: entries, their bytes, and how many of them are texts and objects."""

    entries: int
    nbytes: int
    texts: int
    objects: int


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    nbytes: int
    used: float


class Cache:
    """Entries in `folder`, at most `limit` bytes of them after each `trim`.

    No method raises because of the file system. An entry's name is its key and its kind, ``text`` or ``object``.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._grown = False

    def get(self, name: str, kind: str) -> bytes | None:
        """Return what was put under `name`, and note that it was used; None if it is not there or was damaged."""
        path = self._path(name, kind)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + _CHECK
        if data[:head] != _MAGIC + _check(path.name, data[head:]):
            _remove(path)
            return None
        try:
            os.utime(path)
        except OSError:
            pass
        return data[head:]

    def forget(self, name: str, kind: str) -> None:
        """Remove an entry whose content turned out to be of no use."""
        _remove(self._path(name, kind))

    def put(self, name: str, kind: str, data: bytes) -> None:
        """Keep `data` under `name`, if that can be done."""
        path = self._path(name, kind)
        if len(data) + len(_MAGIC) + _CHECK > self.limit:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, new = tempfile.mkstemp(prefix=_NEW, dir=path.parent)
        except OSError:
            return
        try:
            with open(number, "wb") as file:
                file.write(_MAGIC + _check(path.name, data) + data)
            os.replace(new, path)  # noqa: PTH105
            self._grown = True
        except BaseException as e:
            _remove(Path(new))
            if not isinstance(e, OSError):
                raise

    def trim(self) -> None:
        """Remove the entries that were used longest ago until `limit` is kept, if anything was put since the last."""
        if not self._grown:
            return
        self._grown = False
        files = sorted(self._files(), key=lambda file: (file.used, file.path))
        total = sum(file.nbytes for file in files)
        if total <= self.limit:
            return
        for file in files:
            _remove(file.path)
            total -= file.nbytes
            if total <= self.limit * _ROOM:
                return

    def usage(self) -> Usage:
        """Return what is in the folder."""
        files = list(self._files())
        texts = sum(file.path.suffix == ".text" for file in files)
        return Usage(len(files), sum(file.nbytes for file in files), texts, len(files) - texts)

    def clear(self) -> Usage:
        """Remove every entry, and nothing that is no entry; return what was removed."""
        before = self.usage()
        for file in self._files():
            _remove(file.path)
        left = self.usage()
        for group in _scan(self.folder, _GROUP):
            try:
                Path(group.path).rmdir()
            except OSError:  # something is in it
                pass
        return Usage(*(getattr(before, n) - getattr(left, n) for n in ("entries", "nbytes", "texts", "objects")))

    def _path(self, name: str, kind: str) -> Path:
        return self.folder / name[:2] / f"{name[2:]}.{kind}"

    def _files(self) -> Iterator[_File]:
        """Find all entries; what someone began to write and left is removed on the way."""
        now = time.time()
        for group in _scan(self.folder, _GROUP):
            for entry in _scan(group.path, None):
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if _ENTRY.fullmatch(entry.name) and stat.S_ISREG(found.st_mode):
                    yield _File(Path(entry.path), found.st_size, found.st_mtime)
                elif entry.name.startswith(_NEW) and found.st_mtime < now - _ABANDONED:
                    _remove(Path(entry.path))


def _check(name: str, data: bytes) -> bytes:
    """Return the digest before an entry's content; it covers the name, so that no entry passes for another."""
    return blake2b(name.encode() + b"\0" + data, digest_size=_CHECK).digest()


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass


def _scan(folder: str | Path, names: re.Pattern[str] | None) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from [entry for entry in entries if names is None or names.fullmatch(entry.name)]
    except OSError:
        return


def of_environment() -> Cache | None:
    """Return the cache that the environment names, None if it names none or one that is not to be trusted.

    Raises `Invalid` if ``RIG_CACHE_SIZE`` is no size.
    """
    folder, _, limit = place()
    return None if folder is None else Cache(folder, limit)


def place() -> tuple[Path | None, str, int]:
    """Return the cache's folder, or None and the reason, and its limit in bytes. Raises as `of_environment`."""
    limit = _limit(os.environ.get("RIG_CACHE_SIZE", ""))
    if os.environ.get("RIG_CACHE", "") in ("0", "off", "no", "false"):
        return None, "RIG_CACHE switches it off", limit
    if limit == 0:
        return None, "RIG_CACHE_SIZE is 0", limit
    named = os.environ.get("RIG_CACHE_DIR", "")
    if named:
        try:
            return Path(named).absolute(), "", limit
        except OSError as e:  # the working folder is gone
            return None, f"RIG_CACHE_DIR is {named!r}: {e.strerror}", limit
    folder = _default(os.environ.get)
    if folder is None:
        return None, "there is no home folder", limit
    reason = _distrust(folder)
    return (None, reason, limit) if reason else (folder, "", limit)


def _default(variable: Callable[[str], str | None]) -> Path | None:
    base = Path(variable("XDG_CACHE_HOME") or "")
    if not base.is_absolute():  # as that standard wants
        home = os.path.expanduser("~")  # noqa: PTH111
        base = Path(home, ".cache")
    return base / "rig" if base.is_absolute() else None


def _distrust(folder: Path) -> str:
    """Return why code from `folder` should not be run: another user could have put it there."""
    if sys.platform == "win32":
        return ""
    try:
        status = folder.stat()
    except OSError:  # not there yet
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to another user"
    return f"{folder} can be written by every user" if status.st_mode & stat.S_IWOTH else ""


def _limit(text: str) -> int:
    if not text:
        return LIMIT
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"RIG_CACHE_SIZE is {text!r}, which is no size; write 512M, 2G, or a number of bytes")
    return int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")

"""Sources of other projects, by pin: fetched once, checked, never run."""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import http.server
import io
import itertools
import lzma
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.sources import archives, build_paths, fetch, unpack

SETUP = (
    "import pathlib; pathlib.Path('/tmp/kernelmint-setup-was-run').touch(); raise SystemExit(1)\n"
)
PYPI = "pypi:Some.Kernels==1.0"


def archive(path: Path, files: dict[str, str]) -> str:
    """Writes an archive; its hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, text in files.items():
                zipped.writestr(name, text)
    else:
        with tarfile.open(path, "w:gz") as packed:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                packed.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("PIP_", "KERNELMINT_SOURCES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("SETUP_RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch) -> str:
    """An index that pip is set to, with one source distribution and a wheel; the former's hash."""
    folder = tmp_path / "simple/some-kernels"
    files = {"setup.py": SETUP, "csrc/kernel.h": "int kernel;\n"}
    made = {f"some_kernels-1.0/{name}": text for name, text in files.items()}
    sha256 = archive(folder / "some_kernels-1.0.tar.gz", made)
    (folder / "some_kernels-1.0-py3-none-any.whl").write_bytes(b"")
    links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(folder.iterdir()))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    return sha256


def test_a_source_distribution_of_the_index_that_pip_is_set_to(index, cache, tmp_path, capfd):
    entry = {"archive": PYPI, "sha256": index, "path": "csrc"}
    found = build_paths.find(entry, {})
    assert [path.name for path in found.iterdir()] == ["kernel.h"]
    assert capfd.readouterr().err == f"fetching {PYPI}\n"
    (tmp_path / "simple").rename(tmp_path / "gone")
    assert build_paths.find({**entry, "path": "csrc/kernel.h"}, {}) == found / "kernel.h"
    assert capfd.readouterr().err == ""
    assert not os.access(found / "kernel.h", os.W_OK) or os.geteuid() == 0
    assert not (tmp_path / "ran").exists()


def test_cmake_asks_for_the_same(index, tmp_path):
    command = [sys.executable, build_paths.__file__, f"archive:{index}:csrc:{PYPI}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == str(archives.find(PYPI, index, "csrc"))


def test_a_machine_without_a_network(index, cache, tmp_path, monkeypatch):
    laid = archives.lay(PYPI, index, tmp_path / "sources")
    assert laid.name == "some_kernels-1.0.tar.gz"
    before = laid.stat()
    assert archives.lay(PYPI, index, tmp_path / "sources").stat().st_ino == before.st_ino
    (tmp_path / "simple").rename(tmp_path / "gone")
    with pytest.raises(archives.ArchiveError, match=r"KERNELMINT_SOURCES"):
        archives.folder(PYPI, index)
    monkeypatch.setenv("KERNELMINT_SOURCES", f"{tmp_path / 'absent'}{os.pathsep}{laid.parent}")
    assert (archives.folder(PYPI, index) / "setup.py").read_text() == SETUP


@pytest.mark.parametrize("name", ["v1.2.tar.gz", "v1.2.zip"])
def test_a_file_by_its_address(tmp_path, cache, name):
    sha256 = archive(tmp_path / name, {"top/a.h": "", "top/b/c.h": "1"})
    url = (tmp_path / name).as_uri()
    assert archives.find(url, sha256, "b/c.h").read_text() == "1"
    with pytest.raises(archives.ArchiveError, match=rf"{url} \(sha256 {sha256}\) has no d, which"):
        archives.find(url, sha256, "d")


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_what_is_not_what_was_pinned(tmp_path, cache, damage):
    path = tmp_path / "v1.2.tar.gz"
    sha256 = archive(path, {"top/a.h": "a" * 1000})
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-10] if damage == "truncated" else content[:-1] + b"x")
    with pytest.raises(archives.ArchiveError) as caught:
        archives.folder(path.as_uri(), sha256)
    assert "v1.2.tar.gz" in str(caught.value)
    assert sha256 in str(caught.value)
    assert list((cache / "sources").iterdir()) == []  # nothing of it stays
    path.write_bytes(content)
    assert archives.folder(path.as_uri(), sha256).is_dir()


@pytest.mark.parametrize("content", [b"not an archive", None])
def test_what_cannot_be_unpacked_or_leads_elsewhere(tmp_path, content):
    path = tmp_path / "v1.tar.gz"
    if content is not None:
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
    else:
        sha256 = archive(path, {"../../escaped": "x"})
    with pytest.raises(archives.ArchiveError, match=rf"{sha256}\): v1\.tar\.gz cannot be unpacked"):
        archives.folder(path.as_uri(), sha256)
    assert not list(tmp_path.rglob("escaped"))


def test_the_index_has_no_such_release(index):
    with pytest.raises(archives.ArchiveError, match=r"distribution Some\.Kernels==2") as caught:
        archives.folder("pypi:Some.Kernels==2.0", index)
    assert index in str(caught.value)


def test_the_cache_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(archives.ArchiveError, match=rf"{PYPI} \(sha256 {64 * '0'}\): cannot write"):
        archives.folder(PYPI, 64 * "0")


def test_sources_fetches_ahead(workspace, index, tmp_path):
    workspace.edit("sm80.yaml", "budget: {spill_bytes: 0}\n", "")
    path = workspace.demo / "family.yaml"
    pin = f"{{pypi: Some.Kernels, version: '1.0', sha256: {index}}}"
    build = f"{{archives: {{up: {pin}}}, include: [{{archive: up, path: csrc}}]}}"
    path.write_text(f"{path.read_text()}build: {build}\n")
    result = workspace.run("sources")
    assert result.stdout == f"{PYPI}  cache/sources/{index}/some_kernels-1.0\n"
    result = workspace.run("sources", "--to", "laid")
    assert result.stdout == f"{PYPI}  laid/some_kernels-1.0.tar.gz\n"
    (tmp_path / "simple").rename(tmp_path / "gone")
    result = workspace.run("sources", "--to", "elsewhere")
    assert result.status == 2
    assert PYPI in result.stderr


def tar(path: Path, *members: tuple[str, bytes, str]) -> str:
    """Writes an archive of names, types, and the text of a file or the target of a link."""
    with tarfile.open(path, "w:gz") as packed:
        for name, kind, text in members:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            is_file = kind == tarfile.REGTYPE
            entry.size, entry.linkname = (len(text), "") if is_file else (0, text)
            packed.addfile(entry, io.BytesIO(text.encode()) if is_file else None)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def longer_than_a_path() -> list[tuple[str, bytes, str]]:
    """CVE-2025-4517: links whose real path is longer than the system resolves."""
    part, steps, path = "d" * 247, "abcdefghijklmnop", ""
    members = []
    for step in steps:
        members.append((os.path.join(path, part), tarfile.DIRTYPE, ""))
        members.append((os.path.join(path, step), tarfile.SYMTYPE, part))
        path = os.path.join(path, part)
    link = f"{'/'.join(steps)}/{'l' * 254}"
    return [
        *members,
        (link, tarfile.SYMTYPE, "../" * len(steps)),
        ("escape", tarfile.SYMTYPE, f"{link}/../../../../../outside"),
        ("escape/planted", tarfile.REGTYPE, "x"),
    ]


@pytest.mark.parametrize(
    "members",
    [
        longer_than_a_path(),
        longer_than_a_path()[:-1],
        [("../planted", tarfile.REGTYPE, "x")],
        [("{outside}/planted", tarfile.REGTYPE, "x")],
        [("a/../../../../../outside/planted", tarfile.REGTYPE, "x")],
        [("out", tarfile.SYMTYPE, "{outside}"), ("out/planted", tarfile.REGTYPE, "x")],
        [("out", tarfile.SYMTYPE, "{outside}/planted"), ("out", tarfile.REGTYPE, "x")],
        [("out", tarfile.SYMTYPE, "{outside}/secret")],
        [("out", tarfile.SYMTYPE, "../../../../../outside/secret")],
        [("a/b", tarfile.DIRTYPE, ""), ("in", tarfile.SYMTYPE, "a/b"),
         ("out", tarfile.SYMTYPE, "in/../../../../../../outside/secret")],
        [("out", tarfile.LNKTYPE, "{outside}/secret")],
        [("out", tarfile.LNKTYPE, "../../../../outside/secret")],
        [("pipe", tarfile.FIFOTYPE, "")],
        [("null", tarfile.CHRTYPE, "")],
    ],
)  # fmt: skip
def test_no_member_of_a_tar_lies_or_leads_outside(tmp_path, cache, members):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    members = [
        (name.format(outside=outside), kind, text.format(outside=outside))
        for name, kind, text in members
    ]
    sha256 = tar(tmp_path / "v1.tar.gz", *members)
    with pytest.raises(archives.ArchiveError, match="cannot be unpacked"):
        archives.folder((tmp_path / "v1.tar.gz").as_uri(), sha256)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert list((cache / "sources").iterdir()) == []


def test_links_within_an_archive_lead_to_its_files(tmp_path):
    sha256 = tar(
        tmp_path / "v1.tar.gz",
        ("./", tarfile.DIRTYPE, ""),
        ("./real/include/a.h", tarfile.REGTYPE, "a"),
        ("include", tarfile.SYMTYPE, "real/include"),
        ("deep/er/link.h", tarfile.SYMTYPE, "../../include/../include/a.h"),
        ("hard.h", tarfile.LNKTYPE, "real/include/a.h"),
        ("dangling.h", tarfile.SYMTYPE, "a/submodule/that/is/not/here.h"),
        ("around", tarfile.SYMTYPE, "around"),
        ("real/include/a.h", tarfile.REGTYPE, "later"),
    )
    top = archives.folder((tmp_path / "v1.tar.gz").as_uri(), sha256)
    for name in ("include/a.h", "deep/er/link.h", "real/include/a.h"):
        assert (top / name).read_text() == "later", name
    assert (top / "hard.h").read_text() == "a"
    assert sorted(path.name for path in top.iterdir()) == ["deep", "hard.h", "include", "real"]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("b.h", tarfile.LNKTYPE, "a.h"), "b.h is a link to a.h, no file before it"),
        (("d/" * 2100 + "a.h", tarfile.REGTYPE, ""), "is a name of more than 4096 characters"),
    ],
    ids=["a hard link before its file", "a long name"],
)
def test_what_cannot_be_unpacked_is_named(tmp_path, member, message):
    path = tmp_path / "v1.tar.gz"
    sha256 = tar(path, member, ("a.h", tarfile.REGTYPE, "a"))
    with pytest.raises(archives.ArchiveError, match=message):
        archives.folder(path.as_uri(), sha256)


def test_a_link_in_a_zip(tmp_path):
    path = tmp_path / "v1.zip"
    for target, message in (("b/c.h", None), ("../../../outside", "leads out of it")):
        with zipfile.ZipFile(path, "w") as zipped:
            zipped.writestr("b/c.h", "1")
            entry = zipfile.ZipInfo("a.h")
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            zipped.writestr(entry, target)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if message is None:
            assert (archives.folder(path.as_uri(), sha256) / "a.h").read_text() == "1"
        else:
            with pytest.raises(archives.ArchiveError, match=message):
                archives.folder(path.as_uri(), sha256)


def test_an_archive_that_unfolds_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "_MOST_BYTES", 1 << 30)
    path = tmp_path / "v1.tar.gz"
    entry = tarfile.TarInfo("zeros")
    entry.size = 2 << 30
    with tarfile.open(path, "w:gz") as packed:
        packed.fileobj.write(entry.tobuf())
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(archives.ArchiveError, match="it holds more than 500,000 members or 1 GiB"):
        archives.folder(path.as_uri(), sha256)


def plain_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as written:
        entry = tarfile.TarInfo("top/a.h")
        entry.size = 2000
        written.addfile(entry, io.BytesIO(bytes(range(250)) * 8))
    return packed.getvalue()


def encrypted_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        zipped.writestr("a.h", "1")
    data = bytearray(packed.getvalue())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


WHOLE = {
    "v1.tar.xz": lzma.compress(plain_tar()),
    "v1.tar.bz2": bz2.compress(plain_tar()),
    "v1.tar.gz": plain_tar(),
    "v1.zip": encrypted_zip(),
}


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_a_damaged_archive_is_an_archive_error(tmp_path_factory, name, data):
    content = bytearray(WHOLE[name])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(archives.ArchiveError):
        patch.setenv("KERNELMINT_SOURCES", str(path.parent))
        archives.folder(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_and_names_the_archive(tmp_path, name):
    path = tmp_path / name
    content = WHOLE[name]
    path.write_bytes(content if name == "v1.zip" else content[: len(content) // 8])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(archives.ArchiveError, match=rf"{name} cannot be unpacked: \w"):
        archives.folder(path.as_uri(), sha256)


def test_what_is_unpacked_is_its_users_alone_whatever_the_umask(tmp_path, cache):
    sha256 = archive(tmp_path / "v1.tar.gz", {"top/b/c.h": "1", "top/a.h": ""})
    before = os.umask(0)
    try:
        archives.folder((tmp_path / "v1.tar.gz").as_uri(), sha256)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.rglob("*"))]
    assert not [mode for mode in modes if mode & 0o022]


@pytest.mark.parametrize(
    "place", ["", "sources", "sources/{0}", "sources/{0}/b", "sources/{0}/b/c.h"]
)
@pytest.mark.parametrize("how", ["mode", "owner"])
def test_sources_that_others_may_have_written_are_refused(tmp_path, cache, place, how):
    sha256 = archive(tmp_path / "v1.tar.gz", {"top/b/c.h": "1", "top/a.h": ""})
    url = (tmp_path / "v1.tar.gz").as_uri()
    path = cache / place.replace("{0}/", "{0}/top/").format(sha256)
    archives.folder(url, sha256)
    if how == "mode":
        path.chmod(path.stat().st_mode | 0o020)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("a file can be given away by root alone")
    with pytest.raises(archives.ArchiveError, match=rf"{path} (belongs|may be written).*fix it"):
        archives.folder(url, sha256)


def test_what_is_unpacked_is_what_was_hashed(tmp_path, monkeypatch):
    """A file of KERNELMINT_SOURCES that is replaced meanwhile is not."""
    laid, other = tmp_path / "laid/v1.tar.gz", tmp_path / "other.tar.gz"
    sha256 = archive(laid, {"top/a.h": "good"})
    archive(other, {"top/a.h": "evil"})
    monkeypatch.setenv("KERNELMINT_SOURCES", str(laid.parent))
    sha256_of = archives.sha256_of

    def replaced_after(path: Path) -> str | None:
        found = sha256_of(path)
        other.replace(laid)
        return found

    monkeypatch.setattr(archives, "sha256_of", replaced_after)
    top = archives.folder("https://example.invalid/v1.tar.gz", sha256)
    assert (top / "a.h").read_text() == "good"


def test_a_module_pip_of_the_current_folder_is_not_run(index, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    for name in ("pip", "unearth", "tarfile", "codegen"):
        (tmp_path / f"here/{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path / "here")
    assert archives.folder(PYPI, index).is_dir()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("wrong", ["global", "install"])
def test_the_environment_comes_before_pips_files(index, tmp_path, monkeypatch, wrong):
    (tmp_path / "pip.conf").write_text(f"[{wrong}]\nindex-url = file:///nowhere\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert archives.folder(PYPI, index).is_dir()


def test_pips_files_name_several_indexes(index, tmp_path, monkeypatch):
    """And what is of another command counts for nothing."""
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = file:///nowhere\nextra-index-url =\n    file:///nor-here\n"
        f"    {(tmp_path / 'simple').as_uri()}\n[search]\nindex-url = file:///other\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL")
    assert archives.folder(PYPI, index).is_dir()


def test_a_file_that_pip_cannot_read_is_an_error(index, tmp_path, monkeypatch):
    """The default index may have another project of that name."""
    (tmp_path / "pip.conf").write_text("[global\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(archives.ArchiveError, match=r"`pip config list` fails: .*pip\.conf"):
        archives.folder(PYPI, index)


@pytest.fixture
def serve() -> Iterator[Callable[[Iterator[bytes]], str]]:
    """serve(parts): the address of a server that answers with these parts, in all times."""
    servers = []

    def serve(parts: Iterator[bytes]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    for part in parts:
                        self.wfile.write(part)
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def slowly(text: bytes) -> Iterator[bytes]:
    for byte in itertools.chain(text, itertools.repeat(0x20)):
        yield bytes([byte])
        time.sleep(0.05)


HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n"


@pytest.mark.parametrize("what", ["file", "head", "index"])
def test_an_answer_that_drips_is_not_waited_for(serve, monkeypatch, cache, what):
    monkeypatch.setattr(archives, "_PATIENCE", 1)
    url = serve(slowly(HEAD if what == "head" else HEAD + b"\r\n"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
    origin = PYPI if what == "index" else f"{url}/v1.tar.gz"
    with pytest.raises(archives.ArchiveError, match=r"cannot be fetched: \d+ bytes came in 1 s"):
        archives.folder(origin, 64 * "0")
    assert list((cache / "sources").iterdir()) == []


def test_a_file_without_end_is_too_large(serve, monkeypatch, tmp_path):
    chunks = itertools.repeat(bytes(1 << 20))
    monkeypatch.setattr(fetch, "_MOST_BYTES", 5 << 20)
    with pytest.raises(fetch.FetchError, match="more than 0 GiB"):
        fetch.receive(chunks, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size <= 5 << 20
    url = serve(itertools.chain([HEAD, b"\r\n"], itertools.repeat(bytes(1 << 20))))
    with pytest.raises(archives.ArchiveError, match="cannot be fetched: it has more than 1 GiB"):
        archives.folder(f"{url}/v1.tar.gz", 64 * "0")


@pytest.mark.parametrize("how", ["address", "laid"])
def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch, how):
    os.mkfifo(tmp_path / "v1.tar.gz")
    if how == "laid":
        monkeypatch.setenv("KERNELMINT_SOURCES", str(tmp_path))
    with pytest.raises(archives.ArchiveError, match=r"Not a regular file|Invalid argument"):
        archives.folder((tmp_path / "v1.tar.gz").as_uri(), 64 * "0")


def test_a_fetch_that_is_killed_leaves_nothing_for_good(serve, tmp_path, cache):
    slow = serve(slowly(HEAD + b"\r\n"))
    call = f"archives.folder('{slow}/v1.tar.gz', {64 * '0'!r})"
    code = f"from codegen.sources import archives; {call}"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        while not list(cache.glob("sources/.*/fetched/*")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    sha256 = archive(tmp_path / "v1.tar.gz", {"top/a.h": ""})
    archives.folder((tmp_path / "v1.tar.gz").as_uri(), sha256)
    assert [path.name for path in (cache / "sources").iterdir()] == [sha256]


@pytest.mark.parametrize("kind", ["file", "index"])
def test_no_secret_of_an_address_is_printed(monkeypatch, capfd, kind):
    address = "http://me:hunter2@127.0.0.1:9/simple"
    monkeypatch.setenv("PIP_INDEX_URL", address)
    origin = PYPI if kind == "index" else f"{address}/v1.tar.gz?token=hunter2"
    with pytest.raises(archives.ArchiveError) as caught:
        archives.folder(origin, 64 * "0")
    assert "hunter2" not in str(caught.value) + capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("401 for 'https://me:a@b@h/x?t=1#y', see", "401 for 'https://h/x?…#y', see"),
        ("pypi:a==1", "pypi:a==1"),
        ("https://h/a?b me@example.org", "https://h/a?… me@example.org"),
    ],
)
def test_secrets_are_masked_wherever_an_address_stands(text, shown):
    assert fetch.masked(text) == shown

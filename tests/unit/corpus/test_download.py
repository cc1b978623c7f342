"""Downloads against a server on this machine that cuts connections, changes its mind and tells lies."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.corpus import fetch as fetch_module
from bertsmith.corpus.catalogue import Entry, catalogue, checked_by, listing, total_bytes
from bertsmith.corpus.download import DownloadOptions, download, split_mrpc, unpack
from bertsmith.corpus.fetch import Patience, Remote, fetch

BODY = hashlib.sha512(b"x").digest() * 40_000  # 2.5 MB: many blocks
QUICK = Patience(attempts=3, delay_seconds=0.0, timeout_seconds=2.0)


@dataclass
class Behaviour:
    """What the server does, changed by a test while it runs. cuts: bytes after which successive answers are cut."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str = '"one"'
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    honours_if_range: bool = True
    says_length: bool = True
    after_cut: object = None
    asked: list[dict[str, str]] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    behaviour: Behaviour


class Handler(BaseHTTPRequestHandler):
    """A web server that does as `Behaviour` says."""

    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        how = self.server.behaviour
        how.asked.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
        if how.statuses and (status := how.statuses.pop(0)) != 200:
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.end_headers()
        elif self.path in how.redirects:
            self.send_response(302)
            self.send_header("Location", how.redirects[self.path])
            self.end_headers()
        elif self.path not in how.files:
            self.send_error(404)
        else:
            self._give(how, how.files[self.path])

    def _give(self, how: Behaviour, body: bytes) -> None:
        first = 0
        ranged = self.headers.get("Range")
        if ranged and how.ranges and (not how.honours_if_range or self.headers.get("If-Range", how.etag) == how.etag):
            first = int(ranged.removeprefix("bytes=").removesuffix("-"))
        if first >= len(body) > 0:
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        if how.etag:
            self.send_header("ETag", how.etag)
        if how.says_length:
            self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        rest = body[first:]
        cut = how.cuts.pop(0) if how.cuts else len(rest)
        self.wfile.write(rest[:cut])
        self.wfile.flush()
        if cut < len(rest):
            self.close_connection = True
            if callable(how.after_cut):
                how.after_cut(how)


@pytest.fixture
def server() -> Iterator[tuple[str, Behaviour]]:
    made = Server(("127.0.0.1", 0), Handler)
    made.behaviour = Behaviour({"/f": BODY})
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}", made.behaviour
    made.shutdown()
    thread.join()
    made.server_close()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def remote(url: str, body: bytes = BODY) -> Remote:
    return Remote(f"{url}/f", len(body), "sha256", sha256(body))


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_comes_whole_and_leaves_nothing_beside_it(server, tmp_path):
    url, _ = server
    fetched = fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY
    assert (fetched.size_bytes, fetched.sha256, fetched.verified) == (len(BODY), sha256(BODY), True)
    assert names(tmp_path) == {"f"}


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, len(BODY)), max_size=6))
def test_cut_connections_are_gone_on_with(cuts, tmp_path_factory):
    made = Server(("127.0.0.1", 0), Handler)
    made.behaviour = Behaviour({"/f": BODY}, cuts=list(cuts))
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        path = tmp_path_factory.mktemp("cuts") / "f"
        fetch(Remote(f"http://127.0.0.1:{made.server_port}/f"), path, QUICK)
        assert path.read_bytes() == BODY
    finally:
        made.shutdown()
        thread.join()
        made.server_close()
    assert all("range" in asked for asked in made.behaviour.asked[1:]), "what came is not asked for again"


def test_a_later_call_goes_on_where_the_first_gave_up(server, tmp_path):
    url, how = server
    how.cuts = [1_000_000, 0, 0, 0]
    with pytest.raises(BertsmithError, match="3 times in a row"):
        fetch(remote(url), tmp_path / "f", QUICK)
    assert names(tmp_path) == {".f.part", ".f.part.json"}, "nothing has the final name"
    how.cuts, how.asked[:] = [], []
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY
    assert [asked.get("range") for asked in how.asked] == ["bytes=1000000-"]
    assert how.asked[0]["if-range"] == '"one"'


def test_a_server_that_ignores_range_gives_the_file_from_its_beginning(server, tmp_path):
    url, how = server
    how.cuts, how.ranges = [600_000], False
    fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_a_file_that_changes_midway_is_never_a_mixture(server, tmp_path, honours_if_range):
    url, how = server
    other = BODY[::-1]

    def change(how: Behaviour) -> None:
        how.files["/f"], how.etag = other, '"two"'

    how.cuts, how.after_cut, how.honours_if_range = [700_000], change, honours_if_range
    fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == other


def test_a_change_that_no_etag_tells_is_told_by_the_checksum_and_fetched_anew(server, tmp_path, caplog):
    url, how = server
    right = BODY[::-1]

    def change(how: Behaviour) -> None:
        how.files["/f"] = right

    how.cuts, how.after_cut, how.etag = [700_000], change, ""
    fetch(remote(url, right), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == right


def test_without_etag_and_checksum_nothing_is_gone_on_with(server, tmp_path):
    url, how = server
    how.cuts, how.etag = [700_000, 0, 0], ""
    with pytest.raises(BertsmithError):
        fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    how.cuts, how.asked[:] = [], []
    fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert "range" not in how.asked[0]
    assert (tmp_path / "f").read_bytes() == BODY


def test_wrong_bytes_are_never_left_under_the_name(server, tmp_path):
    url, how = server
    how.files["/f"] = b"y" + BODY[1:]
    with pytest.raises(BertsmithError, match="other bytes than were published"):
        fetch(remote(url), tmp_path / "f", QUICK)
    assert names(tmp_path) == set()


def test_another_size_than_on_record_is_refused_before_it_is_fetched(server, tmp_path):
    url, how = server
    how.files["/f"] = BODY + b"more"
    with pytest.raises(BertsmithError, match="not the 2,560,000 on record"):
        fetch(remote(url), tmp_path / "f", QUICK)
    assert names(tmp_path) == set()


def test_an_old_file_stays_until_the_new_one_is_right(server, tmp_path):
    url, how = server
    (tmp_path / "f").write_bytes(b"old")
    how.files["/f"] = b"y" + BODY[1:]
    with pytest.raises(BertsmithError):
        fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == b"old"


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server, tmp_path):
    url, how = server
    how.statuses = [503, 429]
    fetch(remote(url), tmp_path / "f", QUICK)
    assert len(how.asked) == 3
    with pytest.raises(BertsmithError, match="404") as raised:
        fetch(Remote(f"{url}/gone"), tmp_path / "g", QUICK)
    assert "--url" in raised.value.fix
    assert len(how.asked) == 4
    how.statuses = [503] * 9
    with pytest.raises(BertsmithError, match="503"):
        fetch(remote(url), tmp_path / "h", QUICK)
    assert names(tmp_path) == {"f"}


def test_a_redirect_is_followed_with_the_range(server, tmp_path):
    url, how = server
    how.redirects["/moved"] = f"{url}/f"
    how.cuts = [100_000]
    fetch(Remote(f"{url}/moved"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY
    assert how.asked[-1]["range"] == "bytes=100000-"


def test_a_redirect_from_https_to_http_is_refused():
    request = fetch_module.urllib.request.Request("https://example.org/f")
    with pytest.raises(BertsmithError, match="not https"):
        fetch_module._SecureRedirects().redirect_request(request, None, 302, "", {}, "http://example.org/f")


def test_a_part_that_is_whole_is_only_checked(server, tmp_path):
    url, how = server
    (tmp_path / ".f.part").write_bytes(BODY)
    state = {"url": f"{url}/f", "validator": '"one"', "total": len(BODY)}
    (tmp_path / ".f.part.json").write_text(json.dumps(state))
    fetch(remote(url), tmp_path / "f", QUICK)
    assert how.asked == []
    assert names(tmp_path) == {"f"}


def test_a_part_longer_than_the_file_is_begun_anew(server, tmp_path):
    url, _ = server
    (tmp_path / ".f.part").write_bytes(BODY + b"tail")
    (tmp_path / ".f.part.json").write_text(json.dumps({"url": f"{url}/f", "validator": '"one"', "total": len(BODY)}))
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_disk_that_is_too_small_is_told_before(server, tmp_path, monkeypatch):
    url, _ = server
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(BertsmithError, match=r"2.6 MB are to come, and 1.0 MB are free"):
        fetch(remote(url), tmp_path / "f", QUICK)


def test_a_length_unsaid_is_no_obstacle(server, tmp_path):
    url, how = server
    how.says_length = False
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY


def dump_server(how: Behaviour, date: str = "20260901") -> bytes:
    body = b"BZh" + BODY[:5000]
    name = f"dewiki-{date}-pages-articles-multistream.xml.bz2"
    how.files[f"/dewiki/{date}/{name}"] = body
    older = f"{'0' * 40}  dewiki-20250101-pages-articles-multistream.xml.bz2\n"
    sums = f"{older}{hashlib.sha1(body).hexdigest()}  {name}\n{'1' * 40}  dewiki-{date}-other.gz\n"
    how.files["/dewiki/latest/dewiki-latest-sha1sums.txt"] = sums.encode()
    return body


def test_a_dump_is_fetched_by_its_date_and_checked_by_upstreams_own_sums(server, tmp_path):
    url, how = server
    body = dump_server(how)
    options = DownloadOptions(language="de", url=url)
    assert download("wikipedia", tmp_path, options, QUICK) == [tmp_path / "wikipedia"]
    path = tmp_path / "wikipedia" / "dewiki-20260901-pages-articles-multistream.xml.bz2"
    assert path.read_bytes() == body
    noted = json.loads((path.parent / "downloads.json").read_text())[path.name]
    assert noted["verified"] is True
    assert noted["sha256"] == sha256(body)
    how.asked.clear()
    download("wikipedia", tmp_path, options, QUICK)
    assert len(how.asked) == 1, "only the sums are asked for again"
    path.write_bytes(b"mine")
    with pytest.raises(BertsmithError, match="another file has the name"):
        download("wikipedia", tmp_path, options, QUICK)
    assert path.read_bytes() == b"mine"


def test_a_dump_with_wrong_bytes_or_not_finished_is_refused(server, tmp_path):
    url, how = server
    dump_server(how)
    how.files["/dewiki/20260901/dewiki-20260901-pages-articles-multistream.xml.bz2"] = b"tampered"
    with pytest.raises(BertsmithError, match="sha1"):
        download("wikipedia", tmp_path, DownloadOptions(language="de", url=url), QUICK)
    how.files["/dewiki/latest/dewiki-latest-sha1sums.txt"] = b""
    with pytest.raises(BertsmithError, match="name no dewiki-DATE") as raised:
        download("wikipedia", tmp_path, DownloadOptions(language="de", url=url), QUICK)
    assert "--date" in raised.value.fix
    assert not list((tmp_path / "wikipedia").glob("*.bz2"))


def test_books_come_by_number_and_are_said_to_be_unverified(server, tmp_path):
    url, how = server
    how.files["/cache/epub/84/pg84.txt"] = b"It was on a dreary night of November"
    download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    assert (tmp_path / "gutenberg" / "pg84.txt").read_bytes() == how.files["/cache/epub/84/pg84.txt"]
    assert json.loads((tmp_path / "gutenberg" / "downloads.json").read_text())["pg84.txt"]["verified"] is False
    how.asked.clear()
    download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    assert how.asked == [], "the record tells that it is there"
    with pytest.raises(BertsmithError, match="needs the numbers"):
        download("gutenberg", tmp_path, DownloadOptions(url=url), QUICK)


def test_published_checksums_hold_for_a_mirror_too(server, tmp_path):
    url, how = server
    how.files["/dev-v1.1.json"] = how.files["/train-v1.1.json"] = b"{}"
    with pytest.raises(BertsmithError, match="on record"):
        download("squad1", tmp_path, DownloadOptions(url=url), QUICK)
    assert not list((tmp_path / "squad" / "v1.1").glob("*.json"))


def zipped(path, members: dict[str, bytes]):
    with zipfile.ZipFile(path, "w") as packed:
        for name, body in members.items():
            packed.writestr(name, body)
    return path


def test_a_zip_is_unpacked_without_the_folder_around_it_and_without_litter(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"CoLA/train.tsv": b"1", "CoLA/original/x": b"2", "__MACOSX/CoLA/._x": b"3"})
    (tmp_path / "out").mkdir()
    unpack(archive, tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"train.tsv", "original/x"}
    (tmp_path / "out" / "train.tsv").write_bytes(b"9")
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "train.tsv").read_bytes() == b"1"


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil"])
def test_a_zip_cannot_write_outside_its_folder(tmp_path, name):
    (tmp_path / "out").mkdir()
    with pytest.raises(BertsmithError, match="outside"):
        unpack(zipped(tmp_path / "a.zip", {"ok": b"1", name: b"2"}), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    assert not (tmp_path / "evil").exists()


def test_a_damaged_zip_is_said(tmp_path):
    whole = io.BytesIO()
    zipped(whole, {"a": b"1" * 100})
    (tmp_path / "a.zip").write_bytes(whole.getvalue()[:-30])
    with pytest.raises(BertsmithError, match="damaged"):
        unpack(tmp_path / "a.zip", tmp_path)


def test_mrpc_is_cut_as_glue_has_it(real_data, tmp_path):
    """Glued together again and cut anew, GLUE's own files come out."""
    theirs = real_data("glue/MRPC")
    train, dev = (
        (theirs / name).read_text(encoding="utf-8-sig").rstrip("\n").split("\n") for name in ("train.tsv", "dev.tsv")
    )
    mixed = [train[0], *dev[1:50], *train[1:], *dev[50:]]
    (tmp_path / "msr_paraphrase_train.txt").write_text("\r\n".join(mixed) + "\r\n", encoding="utf-8-sig", newline="")
    ids = ["\t".join(row.split("\t")[1:3]) for row in dev[1:]]
    (tmp_path / "mrpc_dev_ids.tsv").write_text("\n".join(ids) + "\n")
    split_mrpc(tmp_path)
    assert (tmp_path / "train.tsv").read_text().rstrip("\n").split("\n") == train
    assert (tmp_path / "dev.tsv").read_text().rstrip("\n").split("\n") == dev
    (tmp_path / "mrpc_dev_ids.tsv").write_text("1\t2\n")
    with pytest.raises(BertsmithError, match="1 of 1 pairs"):
        split_mrpc(tmp_path)


def parts(entry: Entry) -> list[Entry]:
    return [catalogue()[name] for name in entry.all_of] or [entry]


@pytest.mark.parametrize("name", catalogue())
def test_the_catalogue_is_whole(name):
    entry = catalogue()[name]
    if entry.unavailable:
        assert entry.instead
        return
    for part in parts(entry):
        assert part.base.startswith("https://")
        assert part.folder
        assert part.licence
        assert part.files
        for file in part.files:
            assert (file.bytes is None) == (file.sha256 == ""), "a checksum comes with its size"
            assert file.sha256 == "" or (len(file.sha256) == 64 and int(file.sha256, 16))
    folders = [part.folder for part in catalogue().values() if part.files]
    assert len(set(folders)) == len(folders)


def test_the_list_tells_size_checks_and_licence(capsys):
    assert main(["download"]) == 0
    said = capsys.readouterr().out
    assert said.strip() == listing()
    rows = {line.split()[0]: line for line in said.splitlines()}
    assert "35.1 MB  sha256" in rows["squad1"]
    assert "CC BY-SA 4.0" in rows["squad1"]
    assert "unverified" in rows["gutenberg"]
    assert "sha1 of upstream" in rows["wikipedia"]
    assert "not to be had" in rows["bookcorpus"]
    glue = catalogue()["glue"]
    assert total_bytes(glue) == sum(total_bytes(part) or 0 for part in parts(glue))
    assert checked_by(glue) == "sha256"


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        (["bookcorpus"], "no longer distribute", "gutenberg"),
        (["conll2003"], "NIST", "wnut17"),
        (["squadd1"], "there is no download 'squadd1'", "did you mean 'squad1'?"),
        (["wikipedia", "--language", "../x"], "language is '../x'", "en, de"),
        (["wikipedia", "--date", "yesterday"], "date is 'yesterday'", "YYYYMMDD"),
        (["squad1", "--url", "file:///x"], "url is 'file:///x'", "https://"),
        (["gutenberg"], "needs the numbers", "--books 84 1342"),
    ],
)
def test_a_mistake_is_one_message(args, what, fix, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["download", *args]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert fix in said

"""`bertsmith download`: the catalogue, what is there already, and the list."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator

import pytest

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import locked
from bertsmith.cli import main
from bertsmith.download.catalogue import Entry, catalogue, checked_by, listing, total_bytes
from bertsmith.download.download import DownloadOptions, download, split_mrpc
from bertsmith.download.fetch import Patience
from made_server import Behaviour, serving

QUICK = Patience(attempts=3, delay_seconds=0.0, timeout_seconds=2.0)


@pytest.fixture
def server() -> Iterator[tuple[str, Behaviour]]:
    behaviour = Behaviour()
    with serving(behaviour) as url:
        yield url, behaviour


def dump_server(how: Behaviour, date: str = "20260901") -> bytes:
    body = b"BZh" + b"x" * 5000
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
    assert noted["sha256"] == hashlib.sha256(body).hexdigest()
    how.asked.clear()
    download("wikipedia", tmp_path, options, QUICK)
    assert len(how.asked) == 1, "only the sums are asked for again"
    path.write_bytes(b"mine")
    with pytest.raises(BertsmithError, match="another file has the name"):
        download("wikipedia", tmp_path, options, QUICK)
    assert path.read_bytes() == b"mine"


def test_older_dumps_in_the_folder_are_named(server, tmp_path, caplog):
    url, how = server
    dump_server(how)
    (tmp_path / "wikipedia").mkdir()
    older = "dewiki-{}-pages-articles-multistream.xml.bz2"
    (tmp_path / "wikipedia" / older.format(20250101)).write_bytes(b"BZh")
    (tmp_path / "wikipedia" / f".{older.format(20250201)}.part").write_bytes(b"BZh")
    download("wikipedia", tmp_path, DownloadOptions(language="de", url=url), QUICK)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 2
    assert "3 B of another dump that was not downloaded to its end; finish it with --date 20250201" in warned[0]
    assert f"{older.format(20250101)} is another dump of this Wikipedia" in warned[1]


def test_a_dump_with_wrong_bytes_or_not_finished_is_refused(server, tmp_path):
    url, how = server
    dump_server(how)
    how.files["/dewiki/20260901/dewiki-20260901-pages-articles-multistream.xml.bz2"] = b"tampered"
    with pytest.raises(BertsmithError, match="sha1"):
        download("wikipedia", tmp_path, DownloadOptions(language="de", url=url), QUICK)
    how.files["/dewiki/latest/dewiki-latest-sha1sums.txt"] = b""
    with pytest.raises(BertsmithError, match="no checksum of dewiki-DATE") as raised:
        download("wikipedia", tmp_path, DownloadOptions(language="de", url=url), QUICK)
    assert "--date" in raised.value.fix
    assert not list((tmp_path / "wikipedia").glob("*.bz2"))


def test_books_come_by_number_and_are_said_to_be_unverified(server, tmp_path):
    url, how = server
    how.files["/cache/epub/84/pg84.txt"] = b"It was on a dreary night of November"
    download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=f"{url}/"), QUICK)
    assert (tmp_path / "gutenberg" / "pg84.txt").read_bytes() == how.files["/cache/epub/84/pg84.txt"]
    noted = json.loads((tmp_path / "gutenberg" / "downloads.json").read_text())["pg84.txt"]
    assert (noted["url"], noted["verified"]) == (f"{url}/cache/epub/84/pg84.txt", False)
    how.asked.clear()
    download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    assert how.asked == [], "the record tells that it is there"
    with (
        locked(tmp_path / "gutenberg", doing="reading here"),
        pytest.raises(BertsmithError, match="another process is downloading into this folder"),
    ):
        download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    (tmp_path / "gutenberg" / "downloads.json").write_text("[]")
    with pytest.raises(BertsmithError, match="another file has the name"):
        download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    (tmp_path / "gutenberg" / "pg84.txt").unlink()
    download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    with pytest.raises(BertsmithError, match="needs the numbers"):
        download("gutenberg", tmp_path, DownloadOptions(url=url), QUICK)


def test_a_book_whose_record_cannot_be_written_is_fetched_by_the_next_call(server, tmp_path, monkeypatch):
    url, how = server
    how.files["/cache/epub/84/pg84.txt"] = b"It was on a dreary night of November"

    write = files.write_json

    def full(path, value):
        if path.name == "downloads.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", full)
        with pytest.raises(BertsmithError, match="No space left"):
            download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    download("gutenberg", tmp_path, DownloadOptions(books=(84,), url=url), QUICK)
    assert (tmp_path / "gutenberg" / "pg84.txt").read_bytes() == how.files["/cache/epub/84/pg84.txt"]


@pytest.mark.parametrize(
    ("language", "wiki"),
    [("en", "enwiki"), ("nb", "nowiki"), ("zh-min-nan", "zh_min_nanwiki"), ("be-tarask", "be_x_oldwiki")],
)
def test_a_wikipedia_is_named_as_its_database_is(language, wiki):
    assert DownloadOptions(language=language).wiki == wiki


def test_published_checksums_hold_for_a_mirror_too(server, tmp_path):
    url, how = server
    how.files["/dev-v1.1.json"] = how.files["/train-v1.1.json"] = b"{}"
    with pytest.raises(BertsmithError, match="on record"):
        download("squad1", tmp_path, DownloadOptions(url=url), QUICK)
    assert not list((tmp_path / "squad" / "v1.1").glob("*.json"))


def test_mrpc_is_cut_as_glue_has_it(real_data, tmp_path, said):
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
    assert "WARNING" not in {record.levelname for record in said.records}
    with (tmp_path / "msr_paraphrase_train.txt").open("a", encoding="utf-8") as file:
        file.write(f"{dev[1]}\n")
    split_mrpc(tmp_path)
    assert "1 pairs of the dev list stand in it more than once" in said.text
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
    assert "unavailable" in rows["bookcorpus"]
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
        (["squad1", "--url", "https://"], "url is 'https://'", "https://"),
        (["squad1", "--url", "https://?x"], "url is 'https://?x'", "https://"),
        (["gutenberg"], "needs the numbers", "--books 84 1342"),
        (["squad1", "--language", "de"], "--language does not apply to squad1", "omit it"),
        (["gutenberg", "--books", "84", "--date", "20260901"], "--date does not apply to gutenberg", "omit it"),
        (["gutenberg", "--books", "0"], "books are [0]", "numbers from 1"),
        (["glue", "--books", "84"], "--books does not apply to glue", "omit it"),
        (["google-bert-miniature"], "needs the shape", "--shape 4x256"),
        (["google-bert-miniature", "--shape", "3x256"], "shape is '3x256'", "2, 4, 6, 8, 10, 12 layers"),
        (["google-bert-miniature", "--shape", "4x100"], "shape is '4x100'", "128, 256, 512, 768"),
        (["squad1", "--shape", "4x256"], "--shape does not apply to squad1", "omit it"),
    ],
)
def test_a_mistake_is_one_message(args, what, fix, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["download", *args]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert fix in said
    assert not list(tmp_path.iterdir()), "nothing is begun"

"""One file over HTTP, from a server that cuts connections, changes its mind and tells lies."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.download import fetch as fetch_module
from bertsmith.download.fetch import Patience, Remote, fetch, fetch_text
from made_server import Behaviour, serving

BODY = hashlib.sha512(b"x").digest() * 40_000  # 2.5 MB: many blocks
QUICK = Patience(attempts=3, delay_seconds=0.0, timeout_seconds=2.0)


@pytest.fixture
def server() -> Iterator[tuple[str, Behaviour]]:
    behaviour = Behaviour({"/f": BODY})
    with serving(behaviour) as url:
        yield url, behaviour


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
    behaviour = Behaviour({"/f": BODY}, cuts=list(cuts))
    with serving(behaviour) as url:
        path = tmp_path_factory.mktemp("cuts") / "f"
        fetch(Remote(f"{url}/f"), path, QUICK)
        assert path.read_bytes() == BODY
    assert all("range" in asked for asked in behaviour.asked[1:]), "what came is not asked for again"


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
@pytest.mark.parametrize(
    ("before", "after", "more"),
    [('"one"', '"two"', b""), ('"one"', '"one"', b"more"), ('W/"one"', 'W/"one"', b""), ("", "", b"")],
)
def test_a_file_that_changes_midway_is_never_a_mixture(server, tmp_path, honours_if_range, before, after, more):
    """A weak ETag may stay the same, and is of no more use than none; so may a strong one of a file that grows."""
    url, how = server
    other = BODY[::-1] + more

    def change(how: Behaviour) -> None:
        how.files["/f"], how.etag = other, after

    how.etag, how.cuts, how.after_cut, how.honours_if_range = before, [700_000], change, honours_if_range
    fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == other


def test_a_file_that_is_another_one_at_every_attempt_is_given_up(server, tmp_path):
    url, how = server

    def change(how: Behaviour) -> None:
        how.etag = f'"{len(how.cuts)}"'

    how.cuts, how.after_cut, how.honours_if_range = [700_000] * 40, change, False
    with pytest.raises(BertsmithError, match="3 times in a row"):
        fetch(remote(url), tmp_path / "f", QUICK)


def test_an_answer_from_another_place_than_was_asked_for_is_not_appended(server, tmp_path):
    url, how = server
    how.cuts, how.off_by = [700_000], -5
    fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY


def test_what_came_from_another_address_is_not_gone_on_with(server, tmp_path):
    url, how = server
    how.files["/g"], how.cuts = BODY[::-1], [1_000_000, 0, 0]
    with pytest.raises(BertsmithError, match="3 times in a row"):
        fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    fetch(Remote(f"{url}/g"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY[::-1]


@pytest.mark.parametrize("state", ["", "[]", "{}"])
def test_a_part_that_nothing_is_known_of_is_begun_anew(server, tmp_path, state):
    url, how = server
    (tmp_path / ".f.part").write_bytes(b"y" * 1000)
    (tmp_path / ".f.part.json").write_text(state)
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY
    assert "range" not in how.asked[0]


def test_a_part_of_wrong_bytes_is_told_by_the_checksum_and_fetched_anew(server, tmp_path):
    url, how = server
    (tmp_path / ".f.part").write_bytes(b"y" * 1000)
    (tmp_path / ".f.part.json").write_text(json.dumps({"url": f"{url}/f", "validator": '"one"', "total": len(BODY)}))
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY
    assert [asked.get("range") for asked in how.asked] == ["bytes=1000-", None]


def test_a_change_that_no_etag_tells_is_told_by_the_checksum_and_fetched_anew(server, tmp_path, caplog):
    url, how = server
    right = BODY[::-1]

    def change(how: Behaviour) -> None:
        how.files["/f"] = right

    how.cuts, how.after_cut, how.etag = [700_000], change, ""
    fetch(remote(url, right), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == right


def test_without_etag_and_checksum_nothing_is_gone_on_with(server, tmp_path, said):
    url, how = server
    how.cuts, how.etag = [700_000, 0, 0], ""
    with pytest.raises(BertsmithError):
        fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    how.cuts, how.asked[:] = [], []
    fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert "range" not in how.asked[0]
    assert "f is fetched from its beginning: nothing tells whether" in said.text
    assert (tmp_path / "f").read_bytes() == BODY
    how.cuts = [700_000, 0, 0]
    with pytest.raises(BertsmithError):
        fetch(remote(url), tmp_path / "g", QUICK)
    how.cuts, how.asked[:] = [], []
    fetch(remote(url), tmp_path / "g", QUICK)
    assert how.asked[0]["range"] == "bytes=700000-", "a checksum alone tells enough"


def test_wrong_bytes_are_never_left_under_the_name(server, tmp_path):
    url, how = server
    how.files["/f"] = b"y" + BODY[1:]
    with pytest.raises(BertsmithError, match="checksum mismatch"):
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


@pytest.mark.parametrize(
    ("asked", "waited"), [("7", [7.0, 7.0, 12.0]), ("9999", [60.0] * 3), ("soon", [3.0, 6.0, 12.0])]
)
def test_a_busy_server_says_how_long_to_wait(server, tmp_path, monkeypatch, asked, waited):
    url, how = server
    waits: list[float] = []
    monkeypatch.setattr(fetch_module.time, "sleep", waits.append)
    how.statuses, how.headers["Retry-After"] = [503] * 3, asked
    fetch(remote(url), tmp_path / "f", Patience(attempts=4, delay_seconds=3.0))
    assert waits == waited


def test_a_proxy_is_used(server, tmp_path, monkeypatch):
    url, how = server
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", url)
    how.files["http://nowhere.invalid/f"] = BODY
    fetch(Remote("http://nowhere.invalid/f"), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY


def test_an_answer_that_is_compressed_is_refused(server, tmp_path):
    url, how = server
    how.headers["Content-Encoding"] = "gzip"
    with pytest.raises(BertsmithError, match="compresses the file in transit"):
        fetch(Remote(f"{url}/f"), tmp_path / "f", QUICK)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("address", ["mirror.example/wörter", "exa mple/f", "mirror.example:port/f", "[::1/f"])
def test_an_address_that_none_can_have_is_said_and_not_asked_again(tmp_path, address):
    with pytest.raises(BertsmithError, match="this address cannot be used") as raised:
        fetch(Remote(f"http://{address}"), tmp_path / "f", QUICK)
    assert "--url" in raised.value.fix


def test_a_text_that_was_cut_off_is_asked_for_again(server):
    url, how = server
    how.files["/f"], how.cuts = b"a line\n" * 500, [500, 0]
    assert fetch_text(f"{url}/f", QUICK) == "a line\n" * 500
    assert len(how.asked) == 3
    how.cuts = [500] * 3
    with pytest.raises(BertsmithError, match=r"cut at 500 B of 3\.5 kB"):
        fetch_text(f"{url}/f", QUICK)


def test_no_more_of_a_text_is_read_than_it_may_have(server):
    """Of one without end no byte would ever be looked at."""
    url, _ = server
    read, usual = [], http.client.HTTPResponse.read

    def reading(self, *most):
        read.append(usual(self, *most))
        return read[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.client.HTTPResponse, "read", reading)
        with pytest.raises(BertsmithError, match=r"longer than 1\.0 MB"):
            fetch_text(f"{url}/f", QUICK, most=1_000_000)
    assert sum(map(len, read)) == 1_000_001


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
    with pytest.raises(BertsmithError, match=r"needs 2.6 MB of disk, only 1.0 MB is free"):
        fetch(remote(url), tmp_path / "f", QUICK)
    (tmp_path / ".f.part").write_bytes(BODY[:2_000_000])
    (tmp_path / ".f.part.json").write_text(json.dumps({"url": f"{url}/f", "validator": '"one"', "total": len(BODY)}))
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY, "there is room for the rest"


def test_a_file_that_the_disk_does_not_keep_has_no_name(server, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    url, _ = server
    monkeypatch.setattr(fetch_module.files, "sync", full)
    with pytest.raises(BertsmithError, match="No space left"):
        fetch(remote(url), tmp_path / "f", QUICK)
    assert names(tmp_path) == {".f.part", ".f.part.json"}


def test_a_length_unsaid_is_no_obstacle(server, tmp_path):
    url, how = server
    how.says_length, how.cuts = False, [1_000_000]
    fetch(remote(url), tmp_path / "f", QUICK)
    assert (tmp_path / "f").read_bytes() == BODY
    assert [asked.get("range") for asked in how.asked] == [None, "bytes=1000000-"], "the size on record tells"

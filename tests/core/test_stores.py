"""Objects of a store, through TensorStore's driver for folders; `make drills` tries the real protocols."""

import contextlib
import http.server
import json
import threading
import urllib.parse

import pytest

from convs2s_jax.core import stores
from tests.stores import bucket  # noqa: F401  (a fixture)


def test_what_is_written_is_read_listed_and_deleted(bucket):  # noqa: F811
    stores.write("gs://bucket/run/a b/c+d.txt", b"one")
    stores.write("gs://bucket/run/e", b"\x00two")
    stores.write("gs://bucket/run2", b"three")
    assert stores.read("gs://bucket/run/e") == (bucket / "run" / "e").read_bytes() == b"\x00two"
    assert stores.names("gs://bucket/run") == stores.names("gs://bucket/run/") == ["a b/c+d.txt", "e"]
    assert stores.names("gs://bucket/run", "a b/") == ["a b/c+d.txt"]
    assert stores.names("gs://bucket") == ["run/a b/c+d.txt", "run/e", "run2"]
    stores.delete("gs://bucket/run/e")
    stores.delete("gs://bucket/run/missing")
    assert stores.names("gs://bucket/run") == ["a b/c+d.txt"]
    with pytest.raises(FileNotFoundError):
        stores.read("gs://bucket/run/e")


def test_a_listing_holds_nothing_that_was_not_asked_for(bucket, monkeypatch):  # noqa: F811
    """gcp-storage-emulator lists other objects where none begins so; claims of other trainers would be deleted."""
    stores.write("gs://bucket/run/checkpoint", b"1")
    driver = stores._opened(("gs", "bucket"))

    class All:
        def list(self, _):
            return driver.list()

    monkeypatch.setattr(stores, "_opened", lambda _: All())
    assert stores.names("gs://bucket/run", "lock-") == []
    # consoles of clouds mark folders with empty objects whose names end in a slash
    monkeypatch.setattr(stores, "_listed", lambda *_: ["run/", "run/a/", "run/a/b"])
    assert stores.names("gs://bucket/run") == ["a/b"]


def test_endpoints_and_keys_come_from_the_variables_of_other_programs(monkeypatch):
    plain = {"driver": "s3", "bucket": "b", "s3_request_retries": stores.RETRIES}
    own = {"AWS_ENDPOINT_URL": "http://h:1/", "AWS_ACCESS_KEY_ID": "k", "AWS_DEFAULT_REGION": "eu-1"}
    assert stores.SPECS["s3"]("b", {}) == plain
    assert stores.SPECS["s3"]("b", own) == plain | {
        "endpoint": "http://h:1",
        "aws_region": "eu-1",
        "aws_credentials": {"type": "environment"},
    }
    monkeypatch.setenv(stores.GOOGLE, "unchanged")
    stores.SPECS["gs"]("b", {"STORAGE_EMULATOR_HOST": "h:1", stores.GOOGLE: "unchanged"})
    assert stores.os.environ[stores.GOOGLE] == "unchanged"
    stores.SPECS["gs"]("b", {"STORAGE_EMULATOR_HOST": "h:1"})
    assert stores.os.environ[stores.GOOGLE] == "http://h:1"


REFUSED = {"error": {"code": 403, "message": "x does not have storage.objects.list access to the bucket."}}


@contextlib.contextmanager
def google(monkeypatch, objects, refuses):
    """A store with objects that answers as Google's JSON API; `refuses(kind, count)`, "list" or "read", is a status."""
    counts = {"list": 0, "read": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, query = self.path.partition("?")
            name = urllib.parse.unquote(path.partition("/o/")[2])
            kind = "read" if name else "list"
            counts[kind] += 1
            status = refuses(kind, counts[kind]) or (200 if not name or name in objects else 404)
            asked = urllib.parse.parse_qs(query)
            listed = [key for key in sorted(objects) if key >= asked.get("startOffset", [""])[0]]
            generation = {"generation": "1", "metageneration": "1", "size": "1"}
            content = json.dumps({"items": [{"name": key, **generation} for key in listed]} if not name else {})
            content = (
                json.dumps({"name": name, **generation})
                if name and asked.get("alt") != ["media"]
                else objects.get(name, content)
            )
            content = json.dumps(REFUSED) if status >= 400 else content
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.send_header("x-goog-generation", "1")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        yield
        server.shutdown()


def test_a_list_that_google_refuses_once_is_asked_for_again(monkeypatch):
    with google(monkeypatch, {"run/config.json": "1"}, lambda kind, count: 403 * (kind == "list" and count == 1)):
        assert stores.names("gs://bucket/run") == ["config.json"]
        assert stores.names("gs://bucket/other") == []


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_google_refuses_are_no_empty_list(monkeypatch, status):
    with (
        google(monkeypatch, {"run/config.json": "1"}, lambda *_: status),
        pytest.raises(OSError, match=r"storage\.objects\.list access"),
    ):
        stores.names("gs://bucket/run")

"""Reproduce a refused list that looks like an empty bucket:  python benchmarks/upstream/refused_list.py

Wrong in tensorstore 0.1.86. For a bug report to TensorStore; it only needs tensorstore. The driver for Google Cloud
Storage parses the body of a list without looking at the HTTP status, unless the request is to be repeated. The body of
a refusal (401, 403, 404) is JSON without items, so the list is empty, and no error is raised. A refused read raises
one. The exit status is 1 if the list raises no error.
"""

import http.server
import importlib.metadata
import os
import sys
import threading

REFUSAL = b'{"error": {"code": 403, "message": "you do not have storage.objects.list access to this bucket"}}'


class Refusing(http.server.BaseHTTPRequestHandler):
    """A store that refuses every request, as Google's JSON API does without the permission."""

    def do_GET(self) -> None:
        """Answer with 403."""
        self.send_response(403)
        self.send_header("content-type", "application/json; charset=UTF-8")
        self.send_header("content-length", str(len(REFUSAL)))
        self.end_headers()
        self.wfile.write(REFUSAL)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """List and read from a store that refuses both, and print the results."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["TENSORSTORE_GCS_HTTP_URL"] = f"http://127.0.0.1:{server.server_port}"
    import tensorstore

    print(f"tensorstore {importlib.metadata.version('tensorstore')}")
    driver = tensorstore.KvStore.open({"driver": "gcs", "bucket": "bucket"}).result()
    found = {}
    for name, action in {"list": driver.list, "read": lambda: driver.read("name")}.items():
        try:
            found[name] = f"no error: {action().result()}"
        except ValueError as error:
            found[name] = f"error: {str(error).splitlines()[0][:80]}"
        print(f"{name}: {found[name]}")
    sys.exit(found["list"].startswith("no error"))


if __name__ == "__main__":
    main()

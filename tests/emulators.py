"""Object stores on this machine that speak the real protocols: moto's server for S3, gcp-storage-emulator for gs://."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes import free_port

BUCKET = "bucket"
GOOGLE = """
from http import HTTPStatus
from gcp_storage_emulator import __main__ as program, server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

def place(request):
    name = request.params.get("object_id") or request.query["name"][0]
    return request.params["bucket_name"], name

def generation(storage, where):
    try:
        return storage.get_file_obj(*where)["generation"]
    except NotFound:
        return "0"

def conditional(change):
    def changed(request, response, storage):
        wanted = request.query.get("ifGenerationMatch")
        if wanted and wanted[0] != generation(storage, place(request)):
            response.status = HTTPStatus.PRECONDITION_FAILED
        else:
            change(request, response, storage)
    return changed

def get(request, response, storage):
    response["x-goog-generation"] = generation(storage, place(request))
    objects.get(request, response, storage)

new = {objects.insert: conditional(objects.insert), objects.delete: conditional(objects.delete), objects.get: get}
for _, handlers in server.HANDLERS:
    handlers.update({method: new.get(handler, handler) for method, handler in handlers.items()})
program.main()
"""
"""gcp-storage-emulator, which ignores preconditions, with those of the real store (one request at a time)."""
PROGRAMS = {
    "gs": ("gcp_storage_emulator", ["start", "--in-memory", f"--default-bucket={BUCKET}", "--port={port}"]),
    "s3": ("moto.server", ["-H", "127.0.0.1", "-p", "{port}"]),
}
LIMIT = 60


class Emulator(NamedTuple):
    """A store that runs.

    Attributes:
      scheme: "gs" or "s3".
      url: where it listens.
      variables: of the environment of programs that use it.
    """

    scheme: str
    url: str
    variables: dict[str, str]

    def address(self, name: str, bucket: str = BUCKET) -> str:
        return f"{self.scheme}://{bucket}/{name}"


def variables(scheme: str, url: str) -> dict[str, str]:
    if scheme == "gs":
        return {"STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url}
    keys = {"AWS_ACCESS_KEY_ID": "emulated", "AWS_SECRET_ACCESS_KEY": "emulated", "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": url, **keys}


@contextlib.contextmanager
def running(scheme: str, **more: str) -> Iterator[Emulator]:
    """An emulator with an empty bucket; the test is skipped where it is not installed. `more` goes to its process."""
    module, arguments = PROGRAMS[scheme]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module.partition('.')[0]} is not installed: pip install '.[emulators]'")
    port = free_port()
    program = ["-c", GOOGLE] if scheme == "gs" else ["-m", module]
    command = [sys.executable, *program, *(argument.format(port=port) for argument in arguments)]
    url = f"http://127.0.0.1:{port}"
    log = Path(tempfile.mkdtemp()) / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **more})
    try:
        _wait(url, process, log)
        if scheme == "s3":
            urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=LIMIT).close()
        yield Emulator(scheme, url, variables(scheme, url))
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + LIMIT
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return  # it answers
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)

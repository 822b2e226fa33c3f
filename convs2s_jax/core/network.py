"""Whether sites on the network answer, in bounded time: libraries retry for minutes."""

import queue
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable

SECONDS = 8.0
"""Time in which a site must answer."""


def unreachable(urls: Iterable[str]) -> str:
    """Return why no site of these URLs answers in time; "" if one does, even with an error, or there are none."""
    sites, answers = {urllib.parse.urljoin(url, "/") for url in urls}, queue.SimpleQueue[str]()

    def ask(site: str) -> None:
        why = ""
        try:
            urllib.request.urlopen(site, timeout=SECONDS).close()  # through the proxies of the environment
        except OSError as error:
            reason = getattr(error, "reason", error)
            why = "" if isinstance(error, urllib.error.HTTPError) or isinstance(reason, ssl.SSLError) else str(reason)
        answers.put(why)

    for site in sites:
        threading.Thread(target=ask, args=(site,), daemon=True).start()  # looking up a name has no time limit
    end, why = time.monotonic() + SECONDS, ""
    for _ in sites:
        try:
            why = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return f"no answer within {SECONDS:g} s"
        if not why:
            break
    return why

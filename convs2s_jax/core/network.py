"""Whether sites on the network answer, in bounded time: libraries retry for minutes."""

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
    sites = {urllib.parse.urljoin(url, "/") for url in urls}
    why = dict.fromkeys(sites, f"no answer within {SECONDS:g} s")

    def ask(site: str) -> None:
        try:
            urllib.request.urlopen(site, timeout=SECONDS).close()  # through the proxies of the environment
            why[site] = ""
        except OSError as error:
            reason = getattr(error, "reason", error)
            answered = isinstance(error, urllib.error.HTTPError) or isinstance(reason, ssl.SSLError)
            why[site] = "" if answered else str(reason)

    end = time.monotonic() + SECONDS
    threads = [threading.Thread(target=ask, args=(site,), daemon=True) for site in sites]
    for thread in threads:
        thread.start()  # looking up a name has no time limit
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return min(why.values(), default="")

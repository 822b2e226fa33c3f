"""Event loops that finish their tasks before they close.

Orbax reads the arrays of a checkpoint concurrently. If one cannot be read, it closes the event loop at once; the other
reads run into a closed loop, and Python prints a traceback for each.
"""

import asyncio
import contextlib
import warnings
from collections.abc import Iterator


class _Finishing(asyncio.SelectorEventLoop):
    def close(self) -> None:
        """Close the loop once its tasks have ended, however they end."""
        if not self.is_closed() and not self.is_running():
            while pending := asyncio.all_tasks(self):
                self.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        super().close()


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A loop that finishes its tasks."""
        return _Finishing()


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """Inside, new event loops finish their tasks before they close."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.14 announces the end of policies
        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            asyncio.set_event_loop_policy(before)

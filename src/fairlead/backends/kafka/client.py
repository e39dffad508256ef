"""The thread that serves one client of librdkafka: sender, receiver or log reader.

librdkafka sends and fetches in threads of its own, but hands over messages, delivery reports,
rebalances and errors only to a thread that polls it. `ClientThread` is that thread. Its user is a
`Service`, which defines one round; the thread repeats rounds, waits after an outage, and ends the
client in time: at a close, at the end of the process, and after a fork.

Each client has a thread of its own. One thread for all would wait in the poll of one client while
another has work: beside a consumer that waits 50 ms for its next message, the report of an append
came after 47 ms (median of 200, on loopback), and after 0.6 to 1.5 ms with a thread of its own.
Worse, a rebalance may keep the consumer's thread for 30 s, until the partitions are handed over,
and a close may keep it for 15 s; submits must not wait for either.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaException, Message

from fairlead.backends.kafka.endpoint import reason
from fairlead.backends.kafka.outage_log import KafkaOutageLog
from fairlead.errors import StoreUnavailable
from fairlead.forks import drop_when_forked

AGAIN_SECONDS = 1.0
"""Seconds between an outage and the next round."""

ClientT = TypeVar("ClientT")


class Service(Protocol[ClientT]):
    """The user of a client thread. Every method is called in that thread."""

    def poll(self, thread: ClientThread[ClientT]) -> None:
        """Do one round: take the requests, poll the client. Block for a fraction of a second, or in
        `thread.wait_for_work`. Raise KafkaException or StoreUnavailable in an outage."""

    def finish(self, thread: ClientThread[ClientT]) -> None:
        """Do what is left after the last round, in bounded time."""

    def on_failure(self, error: BaseException) -> None:
        """Record the error that ended the thread; no round follows."""

    def close_client(self, thread: ClientThread[ClientT]) -> None:
        """Close the client. Called last, after an error too."""


class ClientThread(Generic[ClientT]):
    """A thread that serves one client until it is closed."""

    def __init__(
        self,
        name: str,
        client: ClientT,
        service: Service[ClientT],
        outages: KafkaOutageLog,
        close_seconds: float | None = None,
        closes_at_exit: bool = True,
    ) -> None:
        """`close_seconds`: seconds that `close` waits for the thread; None means until it has
        ended. `closes_at_exit`: close when the process ends, as Python must not end while one of
        its threads is inside librdkafka."""
        self.client = client
        self._service = service
        self._outages = outages
        self._close_seconds = close_seconds
        self._is_closing = threading.Event()
        self._has_work = threading.Event()
        self._is_forked = False
        drop_when_forked(self)
        self._at_exit = weakref.finalize(self, _close, weakref.ref(self))
        self._at_exit.atexit = closes_at_exit
        self._thread = threading.Thread(
            target=self._run, name=f"fairlead-kafka-{name}", daemon=True
        )
        self._thread.start()

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent process.
        self._is_forked = True

    @property
    def is_closing(self) -> bool:
        """True if no other round follows."""
        return self._is_closing.is_set()

    @property
    def is_current(self) -> bool:
        """True if the caller is this thread."""
        return threading.current_thread() is self._thread

    def poke(self) -> None:
        """Wake a round that waits for work."""
        if not self._has_work.is_set():  # setting the event costs ten times as much
            self._has_work.set()

    def wait_for_work(self, seconds: float | None = None) -> None:
        """Block until the next `poke`, or for `seconds`. Return at once after an earlier `poke`."""
        self._has_work.wait(seconds)
        self._has_work.clear()

    def pause(self, seconds: float) -> None:
        """Block for `seconds`, or until the thread is to end."""
        self._is_closing.wait(seconds)

    def stop(self) -> None:
        """Let the thread end after its round, without waiting for it."""
        if not self._is_forked:
            self._is_closing.set()
            self._has_work.set()

    def close(self) -> bool:
        """Let the thread end, and wait for it. Return whether it has ended in time: while Kafka is
        unavailable, a consumer of librdkafka with a commit on its way cannot be closed, and the
        thread continues trying."""
        if self._is_forked:
            return True
        self._at_exit.detach()  # no second close at the end of the process
        self.stop()
        self._thread.join(self._close_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_closing.is_set():
                try:
                    self._service.poll(self)
                except (KafkaException, StoreUnavailable) as error:
                    self._outages.report(reason(error))
                    self.pause(AGAIN_SECONDS)
            self._service.finish(self)
        except BaseException as error:
            self._service.on_failure(error)
        finally:
            self._service.close_client(self)


def _close(thread: weakref.ref[ClientThread[Any]]) -> None:
    if (found := thread()) is not None:  # a running thread keeps its object alive
        found.close()


def next_page(consumer: Consumer, count: int, seconds: float) -> list[Message]:
    """Return the next messages, at most `count`. Wait up to `seconds` for the first, not for
    more."""
    first = consumer.poll(seconds)  # `consume` alone would wait until it has `count` messages
    return [] if first is None else [first, *consumer.consume(count - 1, 0)]

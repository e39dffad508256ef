"""The thread that serves one client of librdkafka: sender, appender, receiver and log reader.

librdkafka sends and fetches in threads of its own, but hands over what it has (messages, delivery
reports, rebalances, errors) only to a thread that polls it. `ClientThread` is that thread. Its user
is a `Service`, which says what one round is; the thread repeats rounds, waits after an outage, and
sees to it that the client ends in time, at a close, at the end of the process, and after a fork.

Each client has a thread of its own, not one for all. One thread would have to wait in the poll of
one client while another has something to say: beside a consumer that waits 50 ms for its next
message, the report of an append came after 47 ms (median of 200, on loopback), and after 0.6 to
1.5 ms to a thread of its own. Worse, the consumer's thread may be kept by a rebalance (30 s, until
the partitions are handed over) or by a close (15 s), and submits must not wait for either.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaException, Message

from fairlead.backends.kafka.endpoint import reason
from fairlead.backends.kafka.outage_log import OutageLog
from fairlead.backends.memory.notifier import drop_when_forked
from fairlead.errors import StoreUnavailable

AGAIN_SECONDS = 1.0
"""Between an outage and the next round."""

ClientT = TypeVar("ClientT")


class Service(Protocol[ClientT]):
    """The user of a client thread. Every method is called in that thread."""

    def poll(self, thread: ClientThread[ClientT]) -> None:
        """Do one round: take the requests, poll the client. Blocks for a fraction of a second, or
        in `thread.wait_for_work`. Raises KafkaException or StoreUnavailable in an outage."""

    def finish(self, thread: ClientThread[ClientT]) -> None:
        """Do what is left after the last round, in bounded time."""

    def failed(self, error: BaseException) -> None:
        """Take note that this error ended the thread; no round follows."""

    def release(self, thread: ClientThread[ClientT]) -> None:
        """Close the client. Called last, after an error too."""


class ClientThread(Generic[ClientT]):
    """A thread that serves one client until it is closed."""

    def __init__(
        self,
        name: str,
        client: ClientT,
        service: Service[ClientT],
        outages: OutageLog,
        close_seconds: float | None = None,
        closes_at_exit: bool = True,
    ) -> None:
        """`close_seconds`: how long `close` waits for the thread; None: until it has ended.
        `closes_at_exit`: close when the process ends, as Python must not end while one of its
        threads is inside librdkafka."""
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
        # The threads and sockets of librdkafka stay with the parent.
        self._is_forked = True

    @property
    def is_closing(self) -> bool:
        """Whether no other round follows."""
        return self._is_closing.is_set()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def poke(self) -> None:
        """Wake a round that waits for work."""
        if not self._has_work.is_set():  # a set is ten times as dear
            self._has_work.set()

    def wait_for_work(self, seconds: float | None = None) -> None:
        """Block until the next `poke`, which may have been, or for so long."""
        self._has_work.wait(seconds)
        self._has_work.clear()

    def pause(self, seconds: float) -> None:
        """Block for so long, or until the thread is to end."""
        self._is_closing.wait(seconds)

    def stop(self) -> None:
        """Let the thread end after its round, and do not wait for it."""
        if not self._is_forked:
            self._is_closing.set()
            self._has_work.set()

    def close(self) -> bool:
        """Let the thread end, and wait for it. Return whether it has ended in time: while Kafka is
        away, a consumer of librdkafka with a commit on its way cannot be closed, and the thread
        goes on trying."""
        if self._is_forked:
            return True
        self._at_exit.detach()  # who has waited once does not wait again
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
            self._service.failed(error)
        finally:
            self._service.release(self)


def _close(thread: weakref.ref[ClientThread[Any]]) -> None:
    if (found := thread()) is not None:  # a running thread keeps its object alive
        found.close()


def next_page(consumer: Consumer, count: int, seconds: float) -> list[Message]:
    """Return the next messages, at most `count`; wait up to `seconds` for the first alone."""
    first = consumer.poll(seconds)  # `consume` would wait until it has all that it may take
    return [] if first is None else [first, *consumer.consume(count - 1, 0)]

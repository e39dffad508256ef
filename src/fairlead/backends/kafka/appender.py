"""Appends messages to Kafka for good, from any thread: the future of an append ends when every
broker in sync has them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.client import AGAIN_SECONDS, ClientThread
from fairlead.backends.kafka.endpoint import Endpoint, silent
from fairlead.backends.kafka.outage_log import OutageLog
from fairlead.backends.kafka.sender import Outgoing
from fairlead.backends.memory.notifier import drop_when_forked
from fairlead.errors import (
    ConfigurationError,
    FairleadError,
    InvalidTask,
    StoreUnavailable,
    UnknownQueue,
)

log = logging.getLogger("fairlead.kafka")

APPEND_SECONDS = 30.0
"""What could not be appended for so long has failed; `message.timeout.ms` in the URL sets another
time."""

LARGEST = 16 << 20
"""Bytes of a message. A payload of the greatest size that is allowed by default grows by a third in
JSON."""

MOST_WAITING = 10_000
"""Messages that wait for their topics, or for room in the producer; then `append` waits."""

MOST_KILOBYTES = 64 * 1024
"""What the producer holds that is not appended yet."""

_POLL_SECONDS = 0.1

TOPIC = {"retention.ms": "-1", "max.message.bytes": str(LARGEST)}
"""Of the topics that we make. Nothing in them goes by itself: what is done with is deleted by
whoever has read it."""


class _Append:
    """One call of `append`: its future ends with the last of its messages."""

    def __init__(self, appender: Appender, messages: int, until: float) -> None:
        """`until`: in the monotonic clock's seconds; what the producer has not been given by then
        has failed."""
        self.future: Future[None] = Future()
        # it cannot be cancelled: the messages are on their way
        self.future.set_running_or_notify_cancel()
        self.until = until
        self._appender = appender
        self._left = messages
        self._error: FairleadError | None = None

    def reported(self, error: KafkaError | None, _: Message | None = None) -> None:
        """What became of one message."""
        self.ended(None if error is None else self._appender.refused(error))

    def ended(self, error: FairleadError | None) -> None:
        """One message is done with."""
        if error is not None:
            self._appender.count_failure(error)
            self._error = error
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self._error)


_Waiting = tuple[Outgoing, _Append]


class Appender:
    """See the module. Messages of one partition keep the order of the calls."""

    def __init__(
        self, endpoint: Endpoint, partitions: Mapping[str, int], counted: Callable[[str, int], None]
    ) -> None:
        """`partitions`: how many a queue has, and its topic for good."""
        self._endpoint = endpoint
        self._counted = counted
        self._partitions = partitions
        self._seconds = (
            float(endpoint.client.get("message.timeout.ms", APPEND_SECONDS * 1000)) / 1000
        )
        self._outages = OutageLog(
            "tasks were not appended to their log; the futures of their submits say so",
            {"log": endpoint.location},
        )
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent.
        self._lock = threading.RLock()  # whoever is told that an append has failed may append again
        self._room = threading.Condition(self._lock)
        self._thread: ClientThread[Producer] | None = None
        self._topics: set[str] = set()
        """Queues whose topics have been looked at."""
        self._waiting: deque[_Waiting] = deque()
        """For a topic to be looked at, or for room in the producer. While there are any, everything
        goes behind them."""

    def append(self, messages: Sequence[Outgoing]) -> Future[None]:
        """The future ends when all are there for good, or raises StoreUnavailable when they may not
        be. Waits while there is no room for them. Raises StoreUnavailable when there was none in
        time, UnknownQueue."""
        for queue in {message.queue for message in messages}:
            if queue not in self._partitions:
                raise UnknownQueue(
                    f"queue {queue!r} is not declared here, so its number of partitions is not"
                    " known"
                )
        one = _Append(self, len(messages), time.monotonic() + self._seconds)
        if not messages:
            one.future.set_result(None)
            return one.future
        with self._lock:
            thread = self._thread or self._start()
            if not self._has_room():
                if not self._room.wait_for(self._has_room, self._seconds):
                    raise StoreUnavailable(
                        f"{self._endpoint.location}: too much waits to be sent there; submit again"
                        " later"
                    )
                thread = self._thread or self._start()  # it may have been closed meanwhile
            is_behind = bool(self._waiting)
            self._waiting.extend([(message, one) for message in messages])
            if not is_behind:
                self._produce(thread.client)
        thread.poke()
        return one.future

    def close(self) -> None:
        """Append what is left; every future has ended then. It may be used again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _has_room(self) -> bool:
        if len(self._waiting) < MOST_WAITING:
            return True
        return self._thread is not None and self._thread.is_current

    def _start(self) -> ClientThread[Producer]:
        settings = {
            "enable.idempotence": True,  # nothing comes twice, or out of order, by retries
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": round(self._seconds * 1000),
            "message.max.bytes": LARGEST,
            "queue.buffering.max.kbytes": MOST_KILOBYTES,
            "error_cb": silent,
        }
        producer = Producer(self._endpoint.settings(settings))
        self._thread = ClientThread("appender", producer, self, self._outages)
        return self._thread

    def _produce(self, producer: Producer) -> None:
        """As many of those that wait as there is room for, up to the first of a topic to be looked
        at. With the lock."""
        while self._waiting:
            message, one = self._waiting[0]
            if message.queue not in self._topics:
                return
            try:
                producer.produce(
                    self._endpoint.topic(message.queue),
                    message.value,
                    message.key,
                    message.partition,
                    one.reported,
                )
            except BufferError:
                return
            except KafkaException as error:
                self._waiting.popleft()
                one.reported(error.args[0])
            else:
                self._waiting.popleft()

    def refused(self, error: KafkaError) -> FairleadError:
        """What to tell the submitter of a message that was not appended."""
        if error.fatal():
            self._retire(self._thread)  # its producer sends nothing more
        if error.code() != KafkaError._MSG_TIMED_OUT:
            self._topics.clear()  # one may have been deleted
        told: FairleadError
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            told = InvalidTask(
                f"{self._endpoint.location}: a task is too large for its topic ({error.str()}):"
                " submit a smaller one, or raise the topic's max.message.bytes"
            )
        else:
            told = StoreUnavailable(
                f"{self._endpoint.location}: {error.str()}: the log may not have the task"
            )
        told.__cause__ = KafkaException(error)
        return told

    def count_failure(self, error: FairleadError) -> None:
        """Take note of a message that was not appended."""
        self._counted("failed_appends", 1)
        self._outages.report(str(error))

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Producer]) -> None:
        if self._waiting or len(thread.client):
            self._pass_on(thread.client)
        else:
            thread.wait_for_work(AGAIN_SECONDS)

    def finish(self, thread: ClientThread[Producer]) -> None:
        """Send what is left; where another thread has begun, what waits is for that one."""
        self._retire(thread)
        producer = thread.client
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            if self._thread is None and (self._waiting or len(producer)):
                self._pass_on(producer)
            elif len(producer):
                producer.poll(_POLL_SECONDS)
            else:
                break
        self._end(producer, "closed before the task was sent")

    def failed(self, error: BaseException) -> None:
        log.error("the appender to the task log broke; the next append repairs it", exc_info=error)

    def release(self, thread: ClientThread[Producer]) -> None:
        """Fail what the thread has left, so that no future waits for ever."""
        self._retire(thread)
        self._end(thread.client, "the appender broke before the task was sent")

    def _end(self, producer: Producer, why: str) -> None:
        producer.purge()
        producer.flush(_POLL_SECONDS)
        if self._thread is None:
            self._expire(float("inf"), StoreUnavailable(f"{self._endpoint.location}: {why}"))

    def _retire(self, thread: ClientThread[Producer] | None) -> None:
        """Let the next append start another thread."""
        with self._lock:
            if self._thread is thread:
                self._thread = None
        if thread is not None:
            thread.stop()

    def _pass_on(self, producer: Producer) -> None:
        """Give the producer what waits, and serve what it reports."""
        if self._waiting:  # otherwise the lock is left to whoever appends
            if not self._look_at_topic():
                producer.poll(AGAIN_SECONDS)
            with self._lock:
                self._produce(producer)
                self._room.notify_all()
        producer.poll(_POLL_SECONDS)

    def _look_at_topic(self) -> bool:
        """Of what waits the longest. False when Kafka is away."""
        with self._lock:
            queue = self._waiting[0][0].queue if self._waiting else None
        if queue is None or queue in self._topics:
            return True
        try:
            self._endpoint.settle(queue, self._partitions[queue], TOPIC)
        except StoreUnavailable as error:
            self._expire(time.monotonic(), error)
            return False
        except ConfigurationError as error:
            self._expire(float("inf"), error, queue)
            return True
        self._topics.add(queue)
        return True

    def _expire(self, before: float, error: FairleadError, queue: str | None = None) -> None:
        """Fail what waits and should have been sent by then, of this queue only if it is given."""
        with self._lock:
            expired = [
                w for w in self._waiting if w[1].until <= before and queue in (None, w[0].queue)
            ]
            gone = set(map(id, expired))
            self._waiting = deque(w for w in self._waiting if id(w) not in gone)
            self._room.notify_all()
        for _, one in expired:
            one.ended(error)

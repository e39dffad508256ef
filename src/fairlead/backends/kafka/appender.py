"""The appender of the task log on Kafka, for any thread: the future of an append ends when every
in-sync broker has the messages."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.client import AGAIN_SECONDS, ClientThread
from fairlead.backends.kafka.endpoint import KafkaEndpoint, ignore_error
from fairlead.backends.kafka.outage_log import KafkaOutageLog
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
"""Seconds after which an append that is not confirmed has failed; `message.timeout.ms` in the URL
sets another time."""

LARGEST = 16 << 20
"""Greatest size of a message, in bytes. The greatest payload allowed by default, which grows by a
third in JSON, fits in."""

MOST_WAITING = 10_000
"""Messages that wait for their topics or for room in the producer. Beyond this number, `append`
waits."""

MOST_KILOBYTES = 64 * 1024
"""Kilobytes of unconfirmed messages in the producer."""

_POLL_SECONDS = 0.1

TOPIC = {"retention.ms": "-1", "max.message.bytes": str(LARGEST)}
"""Settings of the topics that we create. Messages do not expire; the reader deletes processed
messages."""


class _Append:
    """One call of `append`: its future ends with the last of its messages."""

    def __init__(self, appender: Appender, messages: int, until: float) -> None:
        """`until`: in seconds of the monotonic clock; a message that the producer does not have by
        then has failed."""
        self.future: Future[None] = Future()
        # no cancellation: the messages are on their way
        self.future.set_running_or_notify_cancel()
        self.until = until
        self._appender = appender
        self._left = messages
        self._error: FairleadError | None = None

    def on_delivery(self, error: KafkaError | None, _: Message | None = None) -> None:
        """Record the delivery report of one message."""
        self.end_message(None if error is None else self._appender.translate(error))

    def end_message(self, error: FairleadError | None) -> None:
        """Record the end of one message."""
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
    """An appender for the queues of one application. Messages of one partition keep the order of
    the calls."""

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        partitions: Mapping[str, int],
        counted: Callable[[str, int], None],
    ) -> None:
        """`partitions`: number of partitions of each queue, which its topic keeps for good."""
        self._endpoint = endpoint
        self._counted = counted
        self._partitions = partitions
        self._seconds = (
            float(endpoint.client.get("message.timeout.ms", APPEND_SECONDS * 1000)) / 1000
        )
        self._outages = KafkaOutageLog(
            "tasks were not appended to their log; the futures of their submits raise the error",
            {"log": endpoint.location},
        )
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent process.
        self._lock = threading.RLock()  # a callback of a failed append may append again
        self._room = threading.Condition(self._lock)
        self._thread: ClientThread[Producer] | None = None
        self._topics: set[str] = set()
        """Queues whose topics exist for sure."""
        self._waiting: deque[_Waiting] = deque()
        """Messages that wait for their topic, or for room in the producer. While any waits, new
        messages go behind it."""

    def append(self, messages: Sequence[Outgoing]) -> Future[None]:
        """Send messages. The future ends when all are stored for good, and raises StoreUnavailable
        if some may not be. Wait while there is no room. Raise StoreUnavailable if no room is free
        in time, UnknownQueue if a queue is not declared."""
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
                        f"{self._endpoint.location}: too many tasks wait to be sent; submit again"
                        " later"
                    )
                # the appender may have been closed meanwhile
                thread = self._thread or self._start()
            is_behind = bool(self._waiting)
            self._waiting.extend([(message, one) for message in messages])
            if not is_behind:
                self._produce(thread.client)
        thread.poke()
        return one.future

    def close(self) -> None:
        """Send what is left; every future has ended when this returns. The appender may be used
        again."""
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
            "enable.idempotence": True,  # retries neither double nor reorder messages
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": round(self._seconds * 1000),
            "message.max.bytes": LARGEST,
            "queue.buffering.max.kbytes": MOST_KILOBYTES,
            "error_cb": ignore_error,
        }
        producer = Producer(self._endpoint.settings(settings))
        self._thread = ClientThread("appender", producer, self, self._outages)
        return self._thread

    def _produce(self, producer: Producer) -> None:
        """Hand waiting messages to the producer, up to the first whose topic is not known to exist,
        or until the producer is full. Requires the lock."""
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
                    one.on_delivery,
                )
            except BufferError:
                return
            except KafkaException as error:
                self._waiting.popleft()
                one.on_delivery(error.args[0])
            else:
                self._waiting.popleft()

    def translate(self, error: KafkaError) -> FairleadError:
        """Return the error for the submitter of a message that was not appended."""
        if error.fatal():
            self._detach(self._thread)  # its producer sends nothing more
        if error.code() != KafkaError._MSG_TIMED_OUT:
            self._topics.clear()  # a topic may have been deleted
        refusal: FairleadError
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            refusal = InvalidTask(
                f"{self._endpoint.location}: a task is too large for its topic ({error.str()}):"
                " submit a smaller one, or raise the topic's max.message.bytes"
            )
        else:
            refusal = StoreUnavailable(
                f"{self._endpoint.location}: {error.str()}: the log may not have the task"
            )
        refusal.__cause__ = KafkaException(error)
        return refusal

    def count_failure(self, error: FairleadError) -> None:
        """Count and log a message that was not appended."""
        self._counted("failed_appends", 1)
        self._outages.report(str(error))

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Producer]) -> None:
        if self._waiting or len(thread.client):
            self._hand_on(thread.client)
        else:
            thread.wait_for_work(AGAIN_SECONDS)

    def finish(self, thread: ClientThread[Producer]) -> None:
        """Send what is left. If another thread has begun, the waiting messages are left to it."""
        self._detach(thread)
        producer = thread.client
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            if self._thread is None and (self._waiting or len(producer)):
                self._hand_on(producer)
            elif len(producer):
                producer.poll(_POLL_SECONDS)
            else:
                break
        self._end(producer, "closed before the task was sent")

    def on_failure(self, error: BaseException) -> None:
        log.error("the appender to the task log broke; the next append repairs it", exc_info=error)

    def close_client(self, thread: ClientThread[Producer]) -> None:
        """Fail all messages of the thread, so that no future waits for ever."""
        self._detach(thread)
        self._end(thread.client, "the appender broke before the task was sent")

    def _end(self, producer: Producer, why: str) -> None:
        producer.purge()
        producer.flush(_POLL_SECONDS)
        if self._thread is None:
            self._expire(float("inf"), StoreUnavailable(f"{self._endpoint.location}: {why}"))

    def _detach(self, thread: ClientThread[Producer] | None) -> None:
        """Let the next append start another thread."""
        with self._lock:
            if self._thread is thread:
                self._thread = None
        if thread is not None:
            thread.stop()

    def _hand_on(self, producer: Producer) -> None:
        """Hand waiting messages to the producer, and serve its reports."""
        if self._waiting:  # an idle appender leaves the lock to its callers
            if not self._ensure_topic():
                producer.poll(AGAIN_SECONDS)
            with self._lock:
                self._produce(producer)
                self._room.notify_all()
        producer.poll(_POLL_SECONDS)

    def _ensure_topic(self) -> bool:
        """Ensure the topic of the longest waiting message. Return False if Kafka is unavailable."""
        with self._lock:
            queue = self._waiting[0][0].queue if self._waiting else None
        if queue is None or queue in self._topics:
            return True
        try:
            self._endpoint.ensure_log(queue, self._partitions[queue], TOPIC)
        except StoreUnavailable as error:
            self._expire(time.monotonic(), error)
            return False
        except ConfigurationError as error:
            self._expire(float("inf"), error, queue)
            return True
        self._topics.add(queue)
        return True

    def _expire(self, before: float, error: FairleadError, queue: str | None = None) -> None:
        """Fail waiting messages whose time ended before `before`; only those of `queue` if
        given."""
        with self._lock:
            expired = [
                w for w in self._waiting if w[1].until <= before and queue in (None, w[0].queue)
            ]
            ended = set(map(id, expired))
            self._waiting = deque(w for w in self._waiting if id(w) not in ended)
            self._room.notify_all()
        for _, one in expired:
            one.end_message(error)

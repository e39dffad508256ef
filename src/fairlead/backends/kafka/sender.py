"""The sender of messages to Kafka, for any thread, without blocking it: the future of a batch ends
when every in-sync broker has its messages. It sends the triggers of tasks and the entries of the
task log."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.client import AGAIN_SECONDS, ClientThread
from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.backends.kafka.outage_log import KafkaOutageLog
from fairlead.errors import (
    ConfigurationError,
    FairleadError,
    InvalidTask,
    StoreUnavailable,
    UnknownQueue,
)
from fairlead.forks import drop_when_forked

log = logging.getLogger("fairlead.kafka")

LARGEST = 15 << 20
"""Greatest size of a message, in bytes. Such a message has room for the greatest payload allowed by
default, which grows by a third in JSON, and fits into a statement of Cassandra, of less than
16 MiB."""

MOST_WAITING = 10_000
"""Messages that wait for their topics or for room in the producer. Beyond this number, there is no
room for further submits."""

_MOST_PRODUCED = 1000
"""Messages handed to the producer under one hold of the lock, so that no `send` waits for long."""

MOST_KILOBYTES = 64 * 1024
"""Kilobytes of unconfirmed messages in the producer."""

_POLL_SECONDS = 0.1

_SHORTAGE_SECONDS = 5.0
"""Seconds for which the state of a topic explains failed messages."""

_ASK_SECONDS = 1.0

_PROPAGATION_SECONDS = 5.0
"""Seconds that a broker has to learn of a new topic."""


class Outgoing(NamedTuple):
    """A message to be sent."""

    queue: str
    partition: int
    key: bytes | None
    value: bytes


class Topics(Protocol):
    """The topics of a sender."""

    def ensure(self, queue: str, partitions: int) -> object:
        """Create the topic of a queue if it is missing, with this number of partitions at least.
        Raise StoreUnavailable, ConfigurationError, UnknownQueue."""

    def shortage(self, topic: str, seconds: float) -> str | None:
        """Return why a topic accepts no message now; None if nothing is known."""


class _Batch:
    """One call of `send`: its future ends with the last of its messages."""

    def __init__(self, sender: KafkaSender, messages: int, until: float) -> None:
        """`until`: in seconds of the monotonic clock; a message that the producer does not have by
        then has failed."""
        self.future: Future[None] = Future()
        # no cancellation: the messages are on their way
        self.future.set_running_or_notify_cancel()
        self.until = until
        self._sender = sender
        self._left = messages
        self._error: FairleadError | None = None

    def on_delivery(self, error: KafkaError | None, message: Message | None = None) -> None:
        """Record the delivery report of one message."""
        topic = None if message is None else message.topic()
        self.end_message(None if error is None else self._sender.translate(error, topic))

    def end_message(self, error: FairleadError | None) -> None:
        """Record the end of one message."""
        if error is not None:
            self._sender.count_failure(error)
            self._error = error
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self._error)


class _Shortages:
    """Reasons why topics accept no message. Kafka is asked for each at most every few seconds."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: dict[str, tuple[float, StoreUnavailable | None]] = {}
        """Time of the question in monotonic seconds, and its response, by topic."""

    def explain(self, topic: str) -> StoreUnavailable | None:
        """Return the reason, or None if it is unknown. Blocks for some seconds at most."""
        asked_at, found = self._known.get(topic, (float("-inf"), None))
        if time.monotonic() - asked_at > _SHORTAGE_SECONDS:
            try:
                why = self._topics.shortage(topic, _ASK_SECONDS)
                found = None if why is None else StoreUnavailable(why)
            except FairleadError:  # Kafka does not respond, as the error of the message says
                found = None
            self._known[topic] = time.monotonic(), found
        return found


class _RoomRequest(NamedTuple):
    """A submitter that waits for room."""

    future: Future[None]
    until: float
    """Monotonic seconds at which the request has failed."""


_Waiting = tuple[Outgoing, _Batch]


class KafkaSender:
    """A sender for the queues of one application. Messages of one partition keep the order of the
    calls."""

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        topics: Topics,
        seconds: float,
        on_unsent: Callable[[], None],
        outages: KafkaOutageLog,
    ) -> None:
        """`seconds`: time after which a message that is not confirmed has failed. `on_unsent`:
        called for each message that was not sent, which `outages` reports."""
        self._endpoint = endpoint
        self._topics = topics
        self._shortages = _Shortages(topics)
        self.seconds = seconds
        self._on_unsent = on_unsent
        self._outages = outages
        self._refusals = endpoint.new_refusals()
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent process.
        self._lock = threading.RLock()  # a callback of a failed message may send again
        self._room_requests: deque[_RoomRequest] = deque()
        """Requests for room, the earliest first."""
        self._thread: ClientThread[Producer] | None = None
        self._known: set[str] = set()
        """Queues whose topics exist for sure."""
        self._suspect: set[str] = set()
        """Queues for whose topics the producer remembers a missing right, which may be back, or too
        few partitions."""
        self._waiting: deque[_Waiting] = deque()
        """Messages that wait for their topic, or for room in the producer. While any waits, new
        messages go behind it."""

    def send(self, messages: Sequence[Outgoing]) -> Future[None]:
        """Send messages, without waiting for anything. The future ends when all are stored for
        good, and raises StoreUnavailable if some may not be, or another error if Kafka refuses
        them."""
        batch = _Batch(self, len(messages), time.monotonic() + self.seconds)
        if not messages:
            batch.future.set_result(None)
            return batch.future
        with self._lock:
            thread = self._thread or self._start()
            is_behind = bool(self._waiting)
            self._waiting.extend([(message, batch) for message in messages])
            if not is_behind:
                self._produce(thread.client)
        thread.poke()
        return batch.future

    def offer(self, messages: Sequence[Outgoing]) -> None:
        """Send messages, or count them as failed if there is no room."""
        if self._has_room:
            self.send(messages)
            return
        for _ in messages:
            self.count_failure(StoreUnavailable("too many messages wait to be sent"))

    @property
    def _has_room(self) -> bool:
        with self._lock:
            if len(self._waiting) < MOST_WAITING and not self._room_requests:
                return True
            # the thread that makes room must not wait for it
            return self._thread is not None and self._thread.is_current

    def room(self) -> Future[None] | None:
        """Return None if there is room for further messages, else a future that ends when there
        is. The future raises StoreUnavailable if no room is free in time."""
        with self._lock:
            if self._has_room:
                return None
            request = _RoomRequest(Future(), time.monotonic() + self.seconds)
            self._room_requests.append(request)
            thread = self._thread or self._start()
        thread.poke()
        return request.future

    def close(self) -> None:
        """Send what is left; every future of `send` and `room` has ended when this returns. The
        sender may be used again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _start(self) -> ClientThread[Producer]:
        settings = {
            "enable.idempotence": True,  # retries neither double nor reorder messages
            "acks": "all",
            # the topic exists when the producer gets its name: after a deletion, fail soon
            "topic.metadata.propagation.max.ms": round(_PROPAGATION_SECONDS * 1000),
            "linger.ms": 0,
            "message.timeout.ms": round(self.seconds * 1000),
            "message.max.bytes": LARGEST,
            "queue.buffering.max.kbytes": MOST_KILOBYTES,
            "error_cb": self._refusals,
        }
        producer = Producer(self._endpoint.producer_settings(settings))
        self._thread = ClientThread("sender", producer, self, self._outages)
        return self._thread

    def _produce(self, producer: Producer) -> bool:
        """Hand waiting messages to the producer, up to the first whose topic is not known to exist,
        or until the producer is full. Return True if the producer can take more. Requires the
        lock."""
        for _ in range(_MOST_PRODUCED):
            if not self._waiting:
                return False
            message, batch = self._waiting[0]
            if message.queue not in self._known:
                return False
            try:
                producer.produce(
                    self._endpoint.topic(message.queue),
                    message.value,
                    message.key,
                    message.partition,
                    batch.on_delivery,
                )
            except BufferError:
                return False
            except KafkaException as error:
                if self._is_outdated(error, message.queue):
                    return False
                self._waiting.popleft()
                batch.on_delivery(error.args[0])
            else:
                self._suspect.discard(message.queue)
                self._waiting.popleft()
        return True

    def _is_outdated(self, error: KafkaException, queue: str) -> bool:
        """Return whether the producer may have refused a message by outdated knowledge: a right
        that was missing earlier, or an earlier number of partitions. The thread then asks for the
        topic anew; the next refusal counts."""
        is_refused = error.args[0].code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError._UNKNOWN_PARTITION,
        )
        if not is_refused or queue in self._suspect:
            self._suspect.discard(queue)
            return False
        self._suspect.add(queue)
        self._known.discard(queue)
        return True

    def translate(self, error: KafkaError, topic: str | None = None) -> FairleadError:
        """Return the error for the submitter of a message that was not sent to the topic."""
        if error.fatal():
            self._detach(self._thread)  # its producer sends nothing more
        if error.code() != KafkaError._MSG_TIMED_OUT:
            self._known.clear()  # a topic may have been deleted
        refusal: FairleadError
        location = self._endpoint.location
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            refusal = InvalidTask(
                f"{location}: a task is too large for its topic ({error.str()}):"
                f" submit a smaller one (at most {LARGEST >> 20} MiB), or raise the topic's"
                " max.message.bytes"
            )
        elif isinstance(refusal := self._refusals.translate(error, location), StoreUnavailable):
            if error.code() == KafkaError._MSG_TIMED_OUT and topic is not None:
                refusal = self._shortages.explain(topic) or refusal
            refusal = StoreUnavailable(f"{refusal}: Kafka may not have the task")
        refusal.__cause__ = KafkaException(error)
        return refusal

    def count_failure(self, error: FairleadError) -> None:
        """Count and log a message that was not sent."""
        self._on_unsent()
        self._outages.report(str(error))

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Producer]) -> None:
        if self._waiting or self._room_requests or len(thread.client):
            self._hand_on(thread.client)
        else:
            thread.wait_for_work(AGAIN_SECONDS)

    def finish(self, thread: ClientThread[Producer]) -> None:
        """Send what is left. If another thread has begun, the waiting messages are left to it."""
        self._detach(thread)
        producer = thread.client
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            if self._thread is None and (self._waiting or len(producer)):
                self._hand_on(producer)
            elif len(producer):
                producer.poll(_POLL_SECONDS)
            else:
                break
        self._end(producer, "closed before the task was sent")

    def on_failure(self, error: BaseException) -> None:
        log.error("the sender to Kafka broke; the next message repairs it", exc_info=error)

    def close_client(self, thread: ClientThread[Producer]) -> None:
        """Fail all messages of the thread, so that no future waits for ever."""
        self._detach(thread)
        self._end(thread.client, "the sender broke before the task was sent")

    def _end(self, producer: Producer, why: str) -> None:
        producer.purge()
        producer.flush(_POLL_SECONDS)
        if self._thread is None:
            self._expire(float("inf"), StoreUnavailable(f"{self._endpoint.location}: {why}"))
            self._end_room_requests(float("inf"))

    def _detach(self, thread: ClientThread[Producer] | None) -> None:
        """Let the next batch start another thread."""
        with self._lock:
            if self._thread is thread:
                self._thread = None
        if thread is not None:
            thread.stop()

    def _hand_on(self, producer: Producer) -> None:
        """Hand waiting messages to the producer, and serve its reports."""
        if self._waiting:  # an idle sender leaves the lock to its callers
            if not self._ensure_topic(producer):
                producer.poll(AGAIN_SECONDS)
            is_open = True
            while is_open:
                with self._lock:
                    is_open = self._produce(producer)
        self._end_room_requests(time.monotonic())
        producer.poll(_POLL_SECONDS)

    def _ensure_topic(self, producer: Producer) -> bool:
        """Ensure the topic of the longest waiting message. Return False if Kafka is unavailable."""
        with self._lock:
            first = self._waiting[0][0] if self._waiting else None
        if first is None or (queue := first.queue) in self._known:
            return True
        try:
            self._topics.ensure(queue, first.partition + 1)
            if queue in self._suspect:
                producer.list_topics(self._endpoint.topic(queue), timeout=_ASK_SECONDS)
        except StoreUnavailable as error:
            self._expire(time.monotonic(), error)
            return False
        except (ConfigurationError, UnknownQueue) as error:
            self._expire(float("inf"), error, queue)
            return True
        self._known.add(queue)
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
        for _, batch in expired:
            batch.end_message(error)

    def _end_room_requests(self, now: float) -> None:
        """End the requests for room that can be granted, one for each free place, and those whose
        time has ended."""
        if not self._room_requests:
            return
        granted: list[Future[None]] = []
        expired: list[Future[None]] = []
        with self._lock:
            free = MOST_WAITING - len(self._waiting)
            while self._room_requests:
                future, until = self._room_requests[0]
                if len(granted) >= free and until > now:
                    break
                self._room_requests.popleft()
                if future.set_running_or_notify_cancel():
                    (granted if len(granted) < free else expired).append(future)
        for future in granted:
            future.set_result(None)
        for future in expired:
            why = "too many tasks wait to be sent; submit again later"
            future.set_exception(StoreUnavailable(f"{self._endpoint.location}: {why}"))

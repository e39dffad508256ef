"""Queues from facts: a sample makes estimates, errors are counted, and the doctor says "about"."""

from __future__ import annotations

from dataclasses import replace

from fairlead import App
from fairlead.model import State
from fairlead.model.task_facts import Backlog, ErrorFact, KeyCount
from fairlead.operate.doctor.checks.queues import QUEUE_CHECKS
from fairlead.operate.doctor.finding import Finding
from fairlead.operate.doctor.survey import Survey
from fairlead.operate.facts import MOST_ERRORS, Facts
from fairlead.operate.numbers import Estimate
from fairlead.operate.summary import queue_numbers
from fairlead.ports.cluster import QueueSettings

NONE = Estimate(0)
FACTS = Facts(
    at=1_000_000_000,
    settings={"idle": QueueSettings(2, True, 1), "mail": QueueSettings(4, False, 1)},
    runs=[],
    backlog=Backlog(
        [
            KeyCount("mail", "send", "acme/ann", State.SUBMITTED, 3, 900_000_000, 1.0),
            KeyCount("mail", "charge", "acme/ann", State.SUBMITTED, 1, 800_000_000, 2.0),
            KeyCount("mail", "send", "umbrella", State.WAITING, 2, 2_000_000_000, 1.0),
            KeyCount("mail", "send", "umbrella", State.ERROR, 1, 0, 1.0),
        ],
        1.0,
    ),
    running=[],
    errors=[ErrorFact("1", "mail", "send", "umbrella", 0, "ValueError")],
    nodes=[],
    incidents=[],
)


def test_all_tasks_are_counted_in_a_small_table() -> None:
    idle, mail = queue_numbers(FACTS)
    assert (idle.queue, idle.partitions, idle.is_paused, idle.backlog) == ("idle", 2, True, NONE)
    assert (mail.queue, mail.partitions, mail.is_paused) == ("mail", 4, False)
    assert (mail.waiting.number, mail.backlog.number, mail.processing) == (2, 4, NONE)
    assert (mail.errors.number, mail.oldest_ready_at) == (1, 800_000_000)


def test_a_sample_makes_estimates_but_errors_are_counted() -> None:
    sample = replace(FACTS, backlog=FACTS.backlog._replace(factor=50.5), errors=FACTS.errors * 7)
    mail = queue_numbers(sample)[1]
    assert (mail.backlog.number, mail.waiting.number, mail.errors.number) == (202, 101, 7)
    assert not sample.are_errors_cut
    assert replace(FACTS, errors=FACTS.errors * MOST_ERRORS).are_errors_cut


async def unserved(facts: Facts, app: App) -> Finding:
    """Return the finding about the queue `mail`, which no worker serves."""
    survey = Survey(
        context=app.operate_context,
        now=facts.at,
        sql=None,
        leases={},
        channel=None,
        queues=queue_numbers(facts),
        nodes=[],
        silent=frozenset(),
        facts=facts,
    )
    [finding] = [each async for each in QUEUE_CHECKS[0](survey, survey.queues[1])]
    return finding


async def test_the_doctor_says_what_to_do_about_tasks_of_a_queue_that_the_code_has_renamed() -> (
    None
):
    start = "start `fairlead worker` for this queue"
    app = App()
    assert (await unserved(FACTS, app)).cure == start  # no application was named
    app.queue("letters")
    assert (await unserved(FACTS, app)).cure == (
        "this application does not declare it, so its workers do not serve it: add"
        f" app.queue('mail') until these tasks have run, and {start}"
    )
    app.queue("mail")
    assert (await unserved(FACTS, app)).cure == start


async def test_the_doctor_says_that_a_number_is_an_estimate() -> None:
    async def found(facts: Facts) -> str:
        return (await unserved(facts, App())).what

    assert await found(FACTS) == "queue mail: 6 tasks and no living worker"
    sample = replace(FACTS, backlog=FACTS.backlog._replace(factor=50.5))
    assert await found(sample) == "queue mail: about 303 tasks and no living worker"

"""The application of the test of watching workers: failing tasks, and incidents written to a file."""

import json
import os

import fairlead

_incidents = os.environ["WATCH_INCIDENTS"]


def note(incident: fairlead.Incident) -> None:
    with open(_incidents, "a") as file:
        file.write(json.dumps([incident.kind, incident.subject]) + "\n")


app = fairlead.App(os.environ["WATCH_URL"], on_incident=note)


@app.task(queue="one", retry=fairlead.NoRetry())
def fail() -> None:
    raise ValueError("declined")


@app.task(queue="two", retry=fairlead.NoRetry())
def fail_again() -> None:
    raise ValueError("declined")

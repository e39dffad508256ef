"""Promises of `fairlead.operate.store.policies.PolicyStore`, for both stores."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.operate.store.policies import (
    EVERY_QUEUE,
    KEPT_VERSIONS,
    PolicyDraft,
    PolicyState,
    PolicyStore,
    Switch,
    SwitchMode,
)

NOW = 1_700_000_000_000_000


@pytest.fixture
def policies(store: SqlTaskStore) -> PolicyStore:
    """Return the policies of a store with two queues."""
    store.database.run(store.registration({"q": 2, "other": 2}))
    return PolicyStore(store)


def draft(queue: str = "q", at: int = NOW, **guarded: float) -> PolicyDraft:
    """Return a draft with these weights, and with limits of ten times each."""
    limits = {key: round(10 * weight) for key, weight in guarded.items()}
    return PolicyDraft(
        queue=queue, author="ann", why="test", computed_at=at, guarded=guarded, limits=limits
    )


def publish(
    policies: PolicyStore, supersedes: int | None = None, queue: str = "q", **guarded: float
) -> int | None:
    return policies.tasks.database.run(policies.publish(draft(queue, **guarded), supersedes))


def weights(policies: PolicyStore, queue: str = "q") -> dict[str, float]:
    """Return the weights as nodes read them."""
    return policies.tasks.database.read_now(policies.tasks.weights(queue))


def limits(policies: PolicyStore, queue: str = "q") -> dict[str, int]:
    """Return the limits as nodes read them."""
    return policies.tasks.database.read_now(policies.tasks.limits(queue))


def settings_version(policies: PolicyStore, queue: str = "q") -> int:
    return policies.tasks.database.read_now(policies.tasks.queue_settings())[queue].version


def state(policies: PolicyStore, version: int) -> PolicyState:
    policy = policies.tasks.database.read_now(policies.policy(version))
    assert policy is not None
    return policy.state


def switch(policies: PolicyStore, mode: SwitchMode, queue: str = EVERY_QUEUE) -> None:
    policies.tasks.database.run(policies.switch(Switch(queue, mode, "bob", "a flood", NOW)))


def test_a_version_is_stored_as_it_was_published(policies: PolicyStore) -> None:
    whole = PolicyDraft(
        queue="q",
        author="ann",
        why="worker-seconds",
        computed_at=NOW,
        input_from=1,
        input_to=2,
        input_rows=3,
        raw={"a": 3.0, "ключ '\"": 0.1},
        guarded={"a": 1.25, "ключ '\"": 0.8},
        reasons={"a": "one step"},
        due={"a": 2.0},
        is_canary=True,
        raw_limits={"a": 2.5, "ключ '\"": 0.1},
        limits={"a": 3, "ключ '\"": 1},
        limit_reasons={"a": "as computed", "gone": "all slots are due to it"},
    )
    version = policies.tasks.database.run(policies.publish(whole, None))
    assert version is not None
    found = policies.tasks.database.read_now(policies.policy(version))
    assert found is not None and (found.version, found.state, found.supersedes) == (
        version,
        PolicyState.ACTIVE,
        None,
    )
    assert {name: getattr(found, name) for name in whole.__struct_fields__} == {
        name: getattr(whole, name) for name in whole.__struct_fields__
    }
    assert weights(policies) == whole.guarded
    assert limits(policies) == whole.limits
    assert policies.tasks.database.read_now(policies.policy(version + 1)) is None


def test_a_new_version_replaces_all_weights_of_the_previous_one_and_nodes_notice(
    policies: PolicyStore,
) -> None:
    first = publish(policies, a=2.0, b=0.5)
    before = settings_version(policies)
    second = publish(policies, first, b=0.4)
    assert (weights(policies), limits(policies)) == ({"b": 0.4}, {"b": 4})
    assert settings_version(policies) > before
    assert first is not None and second is not None and second > first
    assert (state(policies, first), state(policies, second)) == (
        PolicyState.SUPERSEDED,
        PolicyState.ACTIVE,
    )
    assert weights(policies, "other") == limits(policies, "other") == {}


def test_a_publish_that_does_not_supersede_the_active_version_is_refused(
    policies: PolicyStore,
) -> None:
    """Otherwise it would overwrite a concurrent publish or roll-back."""
    first = publish(policies, a=2.0)
    second = publish(policies, first, a=3.0)
    before = settings_version(policies)
    assert publish(policies, first, a=9.0) is None
    assert publish(policies, None, a=9.0) is None
    assert (weights(policies), limits(policies)) == ({"a": 3.0}, {"a": 30})
    assert second is not None and state(policies, second) == PolicyState.ACTIVE
    assert publish(policies, None, "unknown", a=1.0) is None
    assert settings_version(policies) >= before


def test_one_of_many_concurrent_publishes_succeeds(policies: PolicyStore) -> None:
    gate = threading.Barrier(4)

    def run(number: int) -> int | None:
        gate.wait()
        return publish(policies, None, a=float(number + 1))

    with ThreadPoolExecutor(4) as pool:
        found = [version for version in pool.map(run, range(4)) if version is not None]
    assert len(found) == 1
    assert [p.state for p in policies.tasks.database.read_now(policies.policies("q", 10))] == [
        PolicyState.ACTIVE
    ]


def test_a_weight_set_by_a_person_stays_and_one_set_over_a_policy_belongs_to_the_person(
    policies: PolicyStore,
) -> None:
    run, look = policies.tasks.database.run, policies.tasks.database.read_now
    run(policies.tasks.set_weights("q", ["pinned"], 7.0))
    first = publish(policies, pinned=1.0, a=2.0, b=3.0)
    assert weights(policies) == {"pinned": 7.0, "a": 2.0, "b": 3.0}
    run(policies.tasks.set_weights("q", ["a"], 5.0))
    found = look(policies.weights("q"))
    assert (found.by_person, found.by_policy) == ({"pinned": 7.0, "a": 5.0}, {"b": 3.0})
    publish(policies, first, a=1.0, b=1.5)
    assert weights(policies) == {"pinned": 7.0, "a": 5.0, "b": 1.5}


def test_a_roll_back_restores_the_weights_and_records_the_reason(policies: PolicyStore) -> None:
    run, look = policies.tasks.database.run, policies.tasks.database.read_now
    first = publish(policies, a=2.0)
    second = publish(policies, first, a=3.0)
    assert second is not None
    third = run(policies.roll_back(draft(at=NOW + 5, a=2.0), second, "b waits"))
    assert third is not None
    assert (weights(policies), limits(policies)) == ({"a": 2.0}, {"a": 20})
    gone = look(policies.policy(second))
    assert (gone.state, gone.verdict, gone.judged_at) == (
        PolicyState.ROLLED_BACK,
        "b waits",
        NOW + 5,
    )
    assert look(policies.policy(third)).supersedes == second
    assert run(policies.roll_back(draft(), second, "again")) is None  # the version is not active
    assert weights(policies) == {"a": 2.0}


def test_a_canary_window_ends_once(policies: PolicyStore) -> None:
    run, look = policies.tasks.database.run, policies.tasks.database.read_now
    first = publish(policies, a=2.0)
    assert first is not None and look(policies.policy(first)).judged_at is None
    run(policies.judge(first, "fine", NOW + 1))
    assert (look(policies.policy(first)).judged_at, look(policies.policy(first)).verdict) == (
        NOW + 1,
        "fine",
    )
    publish(policies, first, a=3.0)
    run(policies.judge(first, "too late", NOW + 2))
    assert look(policies.policy(first)).verdict == "fine"


def test_the_mark_of_the_settings_differs_after_a_pause_and_a_weight(policies: PolicyStore) -> None:
    """Also where one queue is paused and another one resumed between two heartbeats."""
    tasks, run = policies.tasks, policies.tasks.database.run
    seen = [run(tasks.settings_mark())]
    for steps in (
        [tasks.pause("q", True)],
        [tasks.pause("q", False), tasks.pause("other", True)],
        [tasks.pause("q", True), tasks.pause("other", False)],
        [tasks.set_weights("q", ["a"], 2.0)],
    ):
        for step in steps:
            run(step)
        assert run(tasks.settings_mark()) not in seen
        seen.append(run(tasks.settings_mark()))


@pytest.mark.parametrize("queue", ["q", EVERY_QUEUE])
def test_off_removes_computed_weights_and_limits_and_refuses_publishing(
    policies: PolicyStore, queue: str
) -> None:
    run, look = policies.tasks.database.run, policies.tasks.database.read_now
    run(policies.tasks.set_weights("q", ["pinned"], 7.0))
    first, of_other = publish(policies, a=2.0), publish(policies, None, "other", a=2.0)
    before = settings_version(policies)
    switch(policies, SwitchMode.OFF, queue)
    assert (weights(policies), limits(policies)) == ({"pinned": 7.0}, {})
    assert settings_version(policies) > before
    assert first is not None and state(policies, first) == PolicyState.ROLLED_BACK
    assert publish(policies, None, a=1.0) is None and publish(policies, first, a=1.0) is None
    assert weights(policies, "other") == ({} if queue == EVERY_QUEUE else {"a": 2.0})
    assert limits(policies, "other") == ({} if queue == EVERY_QUEUE else {"a": 20})
    assert (publish(policies, of_other, "other", a=3.0) is None) is (queue == EVERY_QUEUE)
    assert [s.mode for s in look(policies.switches())] == [SwitchMode.OFF]
    assert run(policies.switch_on(queue)) and not run(policies.switch_on(queue))
    assert publish(policies, None, a=1.5) is not None


def test_frozen_keeps_weights_and_limits_and_allows_a_roll_back(policies: PolicyStore) -> None:
    run = policies.tasks.database.run
    first = publish(policies, a=2.0)
    assert first is not None
    switch(policies, SwitchMode.FROZEN, "q")
    assert (weights(policies), limits(policies)) == ({"a": 2.0}, {"a": 20})
    assert publish(policies, first, a=3.0) is None
    assert run(policies.roll_back(draft(), first, "worse")) is not None
    assert weights(policies) == limits(policies) == {}


def test_a_concurrent_publish_and_switch_off_leave_no_weights(policies: PolicyStore) -> None:
    run, look = policies.tasks.database.run, policies.tasks.database.read_now
    for _ in range(10):
        gate = threading.Barrier(2)

        def publishing(gate: threading.Barrier = gate) -> None:
            gate.wait()
            publish(policies, None, a=2.0)

        def switching(gate: threading.Barrier = gate) -> None:
            gate.wait()
            switch(policies, SwitchMode.OFF)

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(publishing), pool.submit(switching)]:
                done.result()
        assert weights(policies) == {}
        assert all(p.state == PolicyState.ROLLED_BACK for p in look(policies.policies("q", 100)))
        run(policies.switch_on(EVERY_QUEUE))


def test_a_limit_set_by_a_person_stays_and_one_set_over_a_policy_belongs_to_the_person(
    policies: PolicyStore,
) -> None:
    run, look = policies.tasks.database.run, policies.tasks.database.read_now
    assert run(policies.tasks.set_limits("q", ["pinned"], 7))
    first = publish(policies, pinned=1.0, a=2.0, b=3.0)
    assert limits(policies) == {"pinned": 7, "a": 20, "b": 30}
    assert run(policies.tasks.set_limits("q", ["a"], 5))
    assert look(policies.limits_by_person("q")) == {"pinned": 7, "a": 5}
    publish(policies, first, a=1.0, b=4.0)
    assert limits(policies) == {"pinned": 7, "a": 5, "b": 40}
    switch(policies, SwitchMode.OFF)
    assert limits(policies) == {"pinned": 7, "a": 5} and limits(policies, "other") == {}


def test_a_limit_is_set_and_lifted_and_nodes_notice(policies: PolicyStore) -> None:
    tasks, run = policies.tasks, policies.tasks.database.run
    assert not run(tasks.set_limits("unknown", ["a"], 1))
    assert not run(tasks.set_limits("q", ["a"], None))
    seen = [run(tasks.settings_mark())]
    for limit, expected in ((3, {"a": 3}), (1, {"a": 1}), (None, {})):
        before = settings_version(policies)
        assert run(tasks.set_limits("q", ["a"], limit))
        assert limits(policies) == expected
        assert settings_version(policies) > before
        assert run(tasks.settings_mark()) not in seen
        seen.append(run(tasks.settings_mark()))


def test_old_versions_are_deleted(policies: PolicyStore) -> None:
    look = policies.tasks.database.read_now
    of_other = publish(policies, None, "other", a=1.0)
    version = None
    for number in range(KEPT_VERSIONS + 5):
        version = publish(policies, version, a=1.0 + number)
    kept = look(policies.policies("q", 1000))
    assert len(kept) == KEPT_VERSIONS and kept[0].version == version
    newest = look(policies.newest())
    assert {queue: policy.version for queue, policy in newest.items()} == {
        "q": version,
        "other": of_other,
    }
    assert len(look(policies.policies(None, 1000))) == KEPT_VERSIONS + 1

"""Tests of the shop, which show the helpers for tests of tasks."""

from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from fairlead.contrib.django.testing import ClearsTasks, drain, run_tasks
from shop.models import Order
from shop.tasks import charge, refuse


class OrderTests(TestCase):
    """Each test is one transaction that is rolled back; run_tasks runs tasks inside it."""

    def test_an_order_is_charged_and_the_customer_thanked(self) -> None:
        """Run the task of an order, and the one that it enqueues."""
        placed = self.client.post(reverse("place_order"), {"customer": "acme", "amount": "3"})
        assert Order.objects.get().state == "placed"
        assert run_tasks() == 2
        assert Order.objects.get().state == "thanked"
        assert charge.get_result(placed.json()["task"]).return_value == 3

    def test_an_error_of_a_task_is_raised(self) -> None:
        """Raise the error of a task in the test."""
        refuse.enqueue(1)
        with self.assertRaisesMessage(ValueError, "cannot be handled"):
            run_tasks()

    def test_a_view_that_breaks_leaves_no_task(self) -> None:
        """Roll back the task with the order."""
        with self.assertRaisesMessage(ValueError, "rolled back"):
            data = {"customer": "acme", "amount": "3", "breaks": "1"}
            self.client.post(reverse("place_order"), data)
        assert not Order.objects.exists()
        assert run_tasks() == 0


class WorkerTests(ClearsTasks, TransactionTestCase):
    """Each test commits, so that a worker sees its tasks."""

    def test_a_worker_runs_the_tasks_of_an_order(self) -> None:
        """Run a worker until nothing is left."""
        self.client.post(reverse("place_order"), {"customer": "acme", "amount": "3"})
        drain()
        assert Order.objects.get().state == "thanked"

"""Tasks of the shop."""

from typing import Any

from fairlead import Limit, NoRetry
from fairlead.contrib.django import get_app
from shop.models import Order

try:
    from django.tasks import task  # Django 6
except ModuleNotFoundError:
    from django_tasks import task  # before it

app = get_app()
app.queue("mail", concurrency=Limit(10))


@task(transactional=True, timeout=30)
def charge(order_id: int) -> int:
    """Charge an order. The new state, the next task and the end of this one commit together."""
    order = Order.objects.get(pk=order_id)
    order.state = "charged"
    order.save()
    thank.using(queue_name="mail", fairness_key=order.customer).enqueue(order_id)
    return order.amount


@task(retry=NoRetry())
def refuse(order_id: int) -> None:
    """Fail for ever, so that a person must decide."""
    raise ValueError(f"order {order_id} cannot be handled")


@task(takes_context=True)
async def thank(context: Any, order_id: int) -> str:
    """Thank the customer, in asynchronous code."""
    order = await Order.objects.aget(pk=order_id)
    order.state = "thanked"
    await order.asave()
    return f"attempt {context.attempt}: thanks, {order.customer}"


@app.periodic("0 3 * * *")
def drop_old_orders() -> None:
    """Delete orders that were never charged, each night."""
    Order.objects.filter(state="placed").delete()

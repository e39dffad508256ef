"""Pages of the shop, as JSON."""

from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import charge, thank


# Clients of this example send JSON and no cookies; keep Django's protection for forms.
@csrf_exempt
@require_POST
def place_order(request: Any) -> JsonResponse:
    """Save an order and enqueue its task, both or neither."""
    with transaction.atomic():
        order = Order.objects.create(
            customer=request.POST["customer"], amount=request.POST["amount"]
        )
        result = charge.using(fairness_key=order.customer).enqueue(order.id)
        if request.POST.get("breaks"):
            raise ValueError("the order and its task are rolled back")
    return JsonResponse({"order": order.id, "task": result.id})


def show_order(request: Any, order_id: int) -> JsonResponse:
    """Show the state of an order."""
    return JsonResponse({"state": Order.objects.get(pk=order_id).state})


@csrf_exempt
async def place_order_async(request: Any) -> JsonResponse:
    """Save an order and enqueue a task in asynchronous code, where Django has no transactions."""
    order = await Order.objects.acreate(customer=request.POST["customer"], amount=0)
    result = await thank.using(queue_name="mail").aenqueue(order.id)
    found = await sync_to_async(Order.objects.count)()
    return JsonResponse({"order": order.id, "task": result.id, "orders": found})

"""Orders."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    id = models.BigAutoField(primary_key=True)
    customer = models.CharField(max_length=100)
    amount = models.IntegerField()
    state = models.CharField(max_length=20, default="placed")

    def __str__(self) -> str:
        return f"order {self.id} of {self.customer}"

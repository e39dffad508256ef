"""The table of orders."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes the table."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("customer", models.CharField(max_length=100)),
                ("amount", models.IntegerField()),
                ("state", models.CharField(default="placed", max_length=20)),
            ],
        )
    ]

"""The tables of Fairlead."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from fairlead.contrib.django.schema import ApplySchema


class Migration(migrations.Migration):
    """Makes the tables, and declares the read-only models over two of them."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        ApplySchema(1),
        migrations.CreateModel(
            name="Task",
            fields=[("id", models.CharField(primary_key=True, max_length=36))],
            options={
                "managed": False,
                "db_table": "fairlead_tasks",
                "default_permissions": ("view", "change"),
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[("seq", models.BigIntegerField(primary_key=True))],
            options={
                "managed": False,
                "db_table": "fairlead_attempts",
                "default_permissions": ("view",),
                "ordering": ("-seq",),
            },
        ),
    ]

"""What charts by the minute find receipts by; built beside the work, without a lock that stops it."""

from django.contrib.postgres.indexes import BrinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('entitlements', '0015_floors'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='admission',
            index=BrinIndex(autosummarize=True, fields=['admitted_at'], name='admission_by_time', pages_per_range=32),
        ),
    ]

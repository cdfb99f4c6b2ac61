"""What an account's page of usage events looks things up by; built beside the work, without a lock that stops it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('telemetry', '0006_desk'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='report',
            index=models.Index(models.F('account_id'), models.F('status'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('status__in', ['duplicate', 'rejected', 'parked'])), name='report_refused_of_account'),
        ),
    ]

"""What the support desk looks things up by; built beside the work, without a lock that stops it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('telemetry', '0005_alerts'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='report',
            index=models.Index(models.F('deployment_id'), models.F('id'), name='report_of_deployment'),
        ),
        AddIndexConcurrently(
            model_name='report',
            index=models.Index(models.F('status'), models.F('id'), condition=models.Q(('status__in', ['duplicate', 'rejected', 'parked'])), name='report_not_accepted'),
        ),
        AddIndexConcurrently(
            model_name='report',
            index=models.Index(models.F('deployment_id'), models.F('status'), condition=models.Q(('status__in', ['duplicate', 'rejected', 'parked'])), name='report_refused_of_one'),
        ),
    ]

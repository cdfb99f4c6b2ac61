"""What the support desk looks things up by; built beside the work, without a lock that stops it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('entitlements', '0011_denial_tier'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='admission',
            index=models.Index(models.F('trace_id'), condition=models.Q(('trace_id', ''), _negated=True), name='admission_of_trace'),
        ),
        AddIndexConcurrently(
            model_name='admission',
            index=models.Index(models.F('id'), condition=models.Q(('outcome__in', ['failed', 'voided', 'expired'])), name='admission_went_wrong'),
        ),
        AddIndexConcurrently(
            model_name='admission',
            index=models.Index(models.F('agent_id'), models.F('id'), condition=models.Q(('outcome__in', ['failed', 'voided', 'expired'])), name='admission_wrong_of_agent'),
        ),
        AddIndexConcurrently(
            model_name='denial',
            index=models.Index(models.F('minute'), include=('account_id', 'limit_type', 'tier', 'count'), name='denial_by_time'),
        ),
        AddIndexConcurrently(
            model_name='denial',
            index=models.Index(models.F('account_id'), models.OrderBy(models.F('minute'), descending=True), name='denial_of_account'),
        ),
        AddIndexConcurrently(
            model_name='denial',
            index=models.Index(models.F('agent_id'), models.OrderBy(models.F('minute'), descending=True), condition=models.Q(('agent_id__isnull', False)), name='denial_of_agent'),
        ),
        AddIndexConcurrently(
            model_name='denial',
            index=models.Index(models.F('trace_id'), condition=models.Q(('trace_id', ''), _negated=True), name='denial_of_trace'),
        ),
    ]

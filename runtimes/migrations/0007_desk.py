"""What the support desk looks things up by; built beside the work, without a lock that stops it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('runtimes', '0006_session_stopped'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='agentsession',
            index=models.Index(models.F('session_id'), name='session_named'),
        ),
        # By the first letters of a name, whatever their case.
        migrations.RunSQL(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS agent_by_name ON runtimes_agent (lower(name) text_pattern_ops)",
            "DROP INDEX CONCURRENTLY IF EXISTS agent_by_name",
        ),
    ]

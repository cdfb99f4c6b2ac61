"""History refuses TRUNCATE too."""

from django.db import migrations

TABLES = ("telemetry_ratecardevent", )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_initial"), ("entitlements", "0002_append_only")]

    operations = [
        migrations.RunSQL(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION history_is_append_only();",
            migrations.RunSQL.noop,
        )
        for table in TABLES
    ]

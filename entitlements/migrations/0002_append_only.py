"""What the ORM cannot say: history refuses TRUNCATE too, and the hot counter stays on its page."""

from django.db import migrations

EVENTS = ("accountevent", "adjustmentevent", "overrideevent", "tierevent")

REFUSE = """
CREATE FUNCTION history_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'history is append-only: % refused on %', TG_OP, TG_TABLE_NAME;
END $$;
"""


def refuse_truncate(table: str) -> str:
    """Return the trigger that refuses TRUNCATE on a table of history."""
    return (
        f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION history_is_append_only();"
    )


class Migration(migrations.Migration):
    dependencies = [("entitlements", "0001_initial"), ("pghistory", "0007_auto_20250421_0444")]

    operations = [
        migrations.RunSQL(REFUSE, "DROP FUNCTION history_is_append_only() CASCADE;"),
        migrations.RunSQL(
            "\n".join(refuse_truncate(f"entitlements_{e}") for e in EVENTS),
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(
            "CREATE TRIGGER refuse_delete BEFORE DELETE ON pghistory_context "
            "FOR EACH ROW EXECUTE FUNCTION history_is_append_only();" + refuse_truncate("pghistory_context"),
            migrations.RunSQL.noop,
        ),
        # Room on the page, and no index on what changes: every update of the counter is a HOT update.
        migrations.RunSQL(
            "ALTER TABLE entitlements_periodcounter SET (fillfactor = 50);"
            "ALTER TABLE entitlements_admission SET (fillfactor = 80);",
            migrations.RunSQL.noop,
        ),
    ]

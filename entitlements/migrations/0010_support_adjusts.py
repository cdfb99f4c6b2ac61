"""Support gives usage back, or adds it, by an audited adjustment (entitlements/actions/adjustments.py)."""

from django.db import migrations


def let_support_adjust(apps, schema_editor):
    """Give the group the right to add an adjustment; nobody changes or deletes one."""
    kind, _ = apps.get_model("contenttypes", "ContentType").objects.get_or_create(
        app_label="entitlements", model="adjustment"
    )
    right, _ = apps.get_model("auth", "Permission").objects.get_or_create(
        content_type=kind, codename="add_adjustment", defaults={"name": "Can add adjustment"}
    )
    group, _ = apps.get_model("auth", "Group").objects.get_or_create(name="support")
    group.permissions.add(right)


class Migration(migrations.Migration):
    dependencies = [("entitlements", "0009_audit")]

    operations = [migrations.RunPython(let_support_adjust, migrations.RunPython.noop)]

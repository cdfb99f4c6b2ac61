"""Support retries removals; pricing reads figures of refusals in place of the list with its addresses."""

from importlib import import_module

from django.db import migrations


def write_groups(apps, schema_editor):
    """Give each group exactly what entitlements/groups.py names."""
    import_module("entitlements.migrations.0007_groups").write_groups(apps, schema_editor)


class Migration(migrations.Migration):
    dependencies = [("entitlements", "0012_desk_indexes")]

    operations = [migrations.RunPython(write_groups, migrations.RunPython.noop)]

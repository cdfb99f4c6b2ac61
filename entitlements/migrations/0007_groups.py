"""The groups of staff, with the least that each needs (entitlements/groups.py)."""

from django.db import migrations

from entitlements.groups import GROUPS


def write_groups(apps, schema_editor):
    """Make each group, and the permissions that it names; Django makes those itself only after all migrations."""
    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    type_model = apps.get_model("contenttypes", "ContentType")
    for name, permissions in GROUPS.items():
        group, _ = group_model.objects.get_or_create(name=name)
        found = []
        for permission in permissions:
            app, _, codename = permission.partition(".")
            verb, _, model = codename.partition("_")
            kind, _ = type_model.objects.get_or_create(app_label=app, model=model)
            made, _ = permission_model.objects.get_or_create(
                content_type=kind, codename=codename, defaults={"name": f"Can {verb} {model}"}
            )
            found.append(made)
        group.permissions.set(found)


class Migration(migrations.Migration):
    dependencies = [
        ("entitlements", "0006_memberships"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(write_groups, migrations.RunPython.noop)]

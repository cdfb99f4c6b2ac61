"""A refusal keeps the tier that it was judged by; older ones keep none."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ('entitlements', '0010_support_adjusts'),
    ]

    operations = [
        migrations.AlterModelOptions(name='admission', options={'verbose_name': 'invocation'}),
        migrations.AlterModelOptions(name='denial', options={'ordering': ('-minute',), 'verbose_name': 'refusal'}),
        migrations.CreateModel(
            name='DenialFigure',
            fields=[
            ],
            options={
                'verbose_name': 'figure of refusals',
                'verbose_name_plural': 'figures of refusals',
                'proxy': True,
                'default_permissions': ('view',),
                'indexes': [],
                'constraints': [],
            },
            bases=('entitlements.denial',),
        ),
        migrations.AddField(
            model_name='denial',
            name='tier',
            field=models.CharField(blank=True, db_default='', default='', help_text='The tier that it was judged by, the last one of the minute; empty: not recorded.', max_length=40),
        ),
    ]

"""The audit log in the database: one entry per object and change, whatever path; always signed; never altered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import shared_task
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F
from pghistory.core import event_models
from pghistory.models import Context

from entitlements.actions.accounts import set_billing_tier
from entitlements.actions.authorship import written_by
from entitlements.models import Account, HistoryEntry, Override, Tier, UnsignedChange
from entitlements.sealing import guards, recorders_sql, seal_history, shapes
from tests.entitlements.admin_pages import Staff, history
from tests.entitlements.raw_sql import psql, role_named
from tests.factories import make_account, make_tier, override
from webhost.history import noted

pytestmark = pytest.mark.usefixtures("live_db")

TABLES = [shape.table for shape in shapes()]


@pytest.fixture
def stella() -> Staff:
    return Staff()


@pytest.fixture
def tiers() -> list[Tier]:
    return [make_tier(max_agents=1) for _ in range(3)]


def added(row: Any) -> list[Any]:
    """Return the entries of a row after the one of its creation."""
    return history(row)[1:]


def notes_of(event: Any) -> dict[str, Any]:
    return dict(event.pgh_context.metadata)


class TestOneEntryForEachObject:
    @pytest.mark.case("ADM-01")
    def test_a_form_leaves_one_with_old_and_new(self, stella: Staff, tiers: list[Tier]) -> None:
        stella.change(tiers[0], max_agents="2", max_deployments_per_agent="7", why="Ticket 9")
        (event,) = added(tiers[0])
        assert (history(tiers[0])[0].max_agents, event.max_agents, event.max_deployments_per_agent) == (1, 2, 7)
        assert (notes_of(event)["actor"], notes_of(event)["reason"]) == (stella.account.email, "Ticket 9")

    @pytest.mark.case("ADM-01")
    def test_an_action_on_three_rows_leaves_three(self, stella: Staff, tiers: list[Tier]) -> None:
        stella.run("retire_selected", *tiers, why="No longer sold", confirmed="yes")
        for tier in tiers:
            (event,) = added(tier)
            assert event.retired_at is not None
            assert notes_of(event)["actor"] == stella.account.email

    @pytest.mark.case("ADM-01")
    def test_deleting_two_selected_tiers_leaves_two(self, stella: Staff, tiers: list[Tier]) -> None:
        stella.run("delete_selected", *tiers[:2], post="yes")
        assert [[e.pgh_label for e in added(tier)] for tier in tiers] == [["delete"], ["delete"], []]

    @pytest.mark.case("ADM-01")
    def test_an_update_of_a_queryset_leaves_one_each(self, tiers: list[Tier]) -> None:
        Tier.objects.filter(pk__in=[t.pk for t in tiers]).update(max_agents=F("max_agents") + 1)
        assert [[e.max_agents for e in added(tier)] for tier in tiers] == [[2], [2], [2]]

    @pytest.mark.case("ADM-01")
    def test_a_bulk_update_leaves_one_each(self, tiers: list[Tier]) -> None:
        for number, tier in enumerate(tiers):
            tier.max_agents = 10 + number
        Tier.objects.bulk_update(tiers, ["max_agents"])
        assert [[e.max_agents for e in added(tier)] for tier in tiers] == [[10], [11], [12]]

    @pytest.mark.case("ADM-01")
    def test_raw_sql_leaves_one_each(self, tiers: list[Tier]) -> None:
        with psql() as connection:
            connection.execute(
                "UPDATE entitlements_tier SET max_agents = 5 WHERE id = ANY(%s)", [[t.pk for t in tiers]]
            )
        assert [[e.max_agents for e in added(tier)] for tier in tiers] == [[5], [5], [5]]

    def test_deleting_an_account_leaves_one_for_it_and_one_for_each_override_that_goes_along(self) -> None:
        account = make_account("alice", max_agents=3, max_concurrent_invocations=2)
        pks = [o.pk for o in account.overrides.all()]
        pk = account.pk
        account.delete()
        assert [e.pgh_label for e in history(Account, pk)] == ["insert", "delete"]
        assert [[e.pgh_label for e in history(Override, one)] for one in pks] == [["insert", "delete"]] * 2

    @pytest.mark.case("ADM-01")
    def test_saving_without_a_change_leaves_none(self, stella: Staff, tiers: list[Tier]) -> None:
        tiers[0].save()
        stella.change(tiers[0], why="Nothing, really")
        with psql() as connection:
            connection.execute("UPDATE entitlements_tier SET max_agents = max_agents WHERE id = %s", [tiers[0].pk])
        assert added(tiers[0]) == []

    @pytest.mark.case("ADM-01")
    def test_a_save_that_fails_leaves_none(self, stella: Staff, tiers: list[Tier]) -> None:
        assert stella.change(tiers[0], max_agents="2", name=tiers[1].name).status_code == 200
        with pytest.raises(IntegrityError), transaction.atomic():
            Tier.objects.filter(pk=tiers[0].pk).update(max_agents=-1)
        assert added(tiers[0]) == []

    def test_a_transaction_that_is_rolled_back_leaves_none(self, tiers: list[Tier]) -> None:
        with transaction.atomic():
            Tier.objects.filter(pk=tiers[0].pk).update(max_agents=2)
            transaction.set_rollback(True)
        assert added(tiers[0]) == []

    @pytest.mark.case("ADM-01")
    def test_what_stripe_says_is_recorded_under_its_event(self) -> None:
        alice, tier = make_account("alice"), make_tier()
        for _ in range(2):  # delivered twice
            set_billing_tier(alice.pk, tier.pk, None, actor="Stripe", reason="Paid", source="stripe evt_1")
        (event,) = added(alice)
        assert (event.billing_tier_id, notes_of(event)["source"]) == (tier.pk, "stripe evt_1")


class TestWhoAlways:
    def test_raw_sql_is_its_database_roles_without_a_reason_and_support_sees_it(self) -> None:
        alice = make_account("alice")
        with role_named("mallory", superuser=True) as mallory, psql(mallory) as connection:
            connection.execute("UPDATE entitlements_account SET is_staff = true WHERE id = %s", [alice.pk])
        (event,) = added(alice)
        notes = notes_of(event)
        assert (notes["actor"], notes["source"], notes["role"]) == (f"database role {mallory}", "database", mallory)
        assert (notes["application"], notes["address"], notes.get("reason")) == ("psql", "127.0.0.1", None)
        row = UnsignedChange.objects.get(pk=event.pgh_context_id)
        assert (row.role, row.application, row.mailed_at, row.acknowledged_at) == (mallory, "psql", None, None)

    def test_a_role_that_may_change_a_table_but_not_write_history_changes_nothing(self) -> None:
        tier = make_tier(max_agents=1)
        with role_named("reports", superuser=False) as role:
            with psql() as owner:
                owner.execute(f"GRANT SELECT, UPDATE ON entitlements_tier TO {role}")
            with psql(role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("UPDATE entitlements_tier SET max_agents = 2 WHERE id = %s", [tier.pk])
        assert Tier.objects.get(pk=tier.pk).max_agents == 1

    def test_one_transaction_is_one_context_however_much_it_changes(self, tiers: list[Tier]) -> None:
        with psql() as connection, connection.transaction():
            for tier in tiers:
                connection.execute("UPDATE entitlements_tier SET max_agents = 5 WHERE id = %s", [tier.pk])
        (context,) = {added(tier)[0].pgh_context_id for tier in tiers}
        assert UnsignedChange.objects.filter(pk=context).count() == 1

    def test_who_signs_with_a_name_of_somebody_else_is_still_known_by_the_role(self, tiers: list[Tier]) -> None:
        with role_named("mallory", superuser=True) as mallory, psql(mallory) as connection:
            connection.execute(
                """SET pghistory.context_metadata = '{"actor": "stella", "source": "admin", "role": "webhost"}'"""
            )
            connection.execute("UPDATE entitlements_tier SET max_agents = 5 WHERE id = %s", [tiers[0].pk])
        (event,) = added(tiers[0])
        assert (notes_of(event)["actor"], notes_of(event)["role"]) == ("stella", mallory)

    def test_nobody_puts_a_change_under_the_signature_of_an_earlier_one(self, stella: Staff, tiers: list[Tier]) -> None:
        stella.change(tiers[0], max_agents="2")
        earlier = added(tiers[0])[0].pgh_context_id
        with psql() as connection:
            connection.execute("SELECT set_config('history.context', %s, false)", [str(earlier)])
            connection.execute("SELECT set_config('pghistory.context_id', %s, false)", [str(earlier)])
            connection.execute("UPDATE entitlements_tier SET max_agents = 5 WHERE id = %s", [tiers[1].pk])
        (event,) = added(tiers[1])
        assert event.pgh_context_id != earlier
        assert notes_of(event)["source"] == "database"

    @pytest.mark.parametrize("junk", ["{", "5", "[]", "{}", '{"source": ""}', '{"actor": "stella"}'])
    def test_notes_that_say_no_source_are_no_signature(self, tiers: list[Tier], junk: str) -> None:
        with psql() as connection:
            connection.execute("SELECT set_config('pghistory.context_metadata', %s, false)", [junk])
            connection.execute("UPDATE entitlements_tier SET max_agents = 5 WHERE id = %s", [tiers[0].pk])
        (event,) = added(tiers[0])
        assert (notes_of(event)["source"], notes_of(event)["actor"]) == ("database", "database role webhost")
        assert UnsignedChange.objects.filter(pk=event.pgh_context_id).exists()


class TestWhatOneTaskSays:
    def test_the_reason_of_what_is_committed_is_not_rewritten_by_what_the_task_does_next(
        self, tiers: list[Tier]
    ) -> None:
        with noted(source="task sweep"):
            for number, tier in enumerate(tiers):
                with written_by("stella", f"Reason {number}"):
                    Tier.objects.filter(pk=tier.pk).update(max_agents=9)
        assert [notes_of(added(tier)[0])["reason"] for tier in tiers] == ["Reason 0", "Reason 1", "Reason 2"]

    def test_what_comes_after_is_not_said_by_who_signed_before(self, tiers: list[Tier]) -> None:
        with noted(source="task sweep"), transaction.atomic():
            with written_by("stella", "Ticket 1"):
                Tier.objects.filter(pk=tiers[0].pk).update(max_agents=9)
            Tier.objects.filter(pk=tiers[1].pk).update(max_agents=9)
        first, second = notes_of(added(tiers[0])[0]), notes_of(added(tiers[1])[0])
        assert (first["actor"], first["reason"], first["source"]) == ("stella", "Ticket 1", "admin")
        assert (second.get("actor"), second.get("reason"), second["source"]) == (None, None, "task sweep")

    def test_threads_do_not_sign_for_each_other(self, tiers: list[Tier]) -> None:
        def change() -> None:
            Tier.objects.filter(pk=tiers[0].pk).update(max_agents=9)
            connection.close()

        with noted(source="task mine"):
            other = threading.Thread(target=change)
            other.start()
            other.join()
        assert notes_of(added(tiers[0])[0])["source"] == "database"

    def test_a_savepoint_that_is_rolled_back_takes_its_signature_along(self, tiers: list[Tier]) -> None:
        with noted(source="task sweep"), transaction.atomic():
            with transaction.atomic():
                Tier.objects.filter(pk=tiers[0].pk).update(max_agents=9)
                transaction.set_rollback(True)
            Tier.objects.filter(pk=tiers[1].pk).update(max_agents=9)
        assert added(tiers[0]) == []
        assert notes_of(added(tiers[1])[0])["source"] == "task sweep"


@shared_task(name="tests.raise_agents")
def raise_agents(pk: int) -> None:
    Tier.objects.filter(pk=pk).update(max_agents=F("max_agents") + 1)


class TestMachinesByTheirNames:
    def test_a_task_signs_with_its_name(self, tiers: list[Tier]) -> None:
        raise_agents(tiers[0].pk)
        (event,) = added(tiers[0])
        assert notes_of(event)["source"] == "task tests.raise_agents"

    @pytest.mark.parametrize("made", ["seed_tiers", "migrate"])
    def test_commands_leave_nothing_unsigned(self, made: str) -> None:
        before = set(UnsignedChange.objects.values_list("pk", flat=True))
        call_command(made, verbosity=0)
        assert set(UnsignedChange.objects.values_list("pk", flat=True)) == before
        assert history(Tier.objects.get(slug="free"))[0].pgh_context.metadata["source"] == "command seed_tiers"

    def test_a_migration_signs_with_its_name_and_only_for_itself(self, tiers: list[Tier]) -> None:
        from entitlements.management.commands.migrate import Command

        command = Command()
        command.verbosity = 0
        command.migration_progress_callback("apply_start", "entitlements.0099_more_agents", fake=False)
        raise_agents.run(tiers[0].pk)
        command._sign("")
        raise_agents.run(tiers[1].pk)
        assert notes_of(added(tiers[0])[0])["source"] == "migration entitlements.0099_more_agents"
        assert notes_of(added(tiers[1])[0])["source"] == "database"


class TestNothingRemovesOrAlters:
    @pytest.fixture
    def entry(self) -> Iterator[Any]:
        tier = make_tier(max_agents=3)
        (entry,) = history(tier)
        yield entry
        (after,) = history(tier)
        assert (after.max_agents, after.pgh_label, after.pgh_context_id) == (3, "insert", entry.pgh_context_id)
        assert after.pgh_context.metadata == entry.pgh_context.metadata

    @pytest.mark.case("ADM-03")
    def test_the_orm_does_not(self, entry: Any) -> None:
        for attempt in (
            entry.delete,
            lambda: type(entry).objects.filter(pk=entry.pk).update(max_agents=9),
            lambda: type(entry).objects.filter(pk=entry.pk).delete(),
            lambda: Context.objects.filter(pk=entry.pgh_context_id).update(metadata={}),
            lambda: Context.objects.filter(pk=entry.pgh_context_id).delete(),
            lambda: type(entry).objects.create(
                pgh_obj_id=entry.pgh_obj_id, pgh_label="update", id=1, slug="x", rank=1, name="x"
            ),
            lambda: Context.objects.create(id=uuid4(), metadata={"actor": "stella"}),
        ):
            with pytest.raises(DatabaseError, match=r"history|Cannot update or delete"), transaction.atomic():
                attempt()

    @pytest.mark.case("ADM-03")
    @pytest.mark.parametrize("table", [*TABLES, "pghistory_context", "entitlements_unsignedchange"])
    def test_a_superuser_empties_no_table_of_it(self, entry: Any, table: str) -> None:
        with psql() as connection:
            assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (
                True,
            )
            for cascade in ("", " CASCADE"):
                with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                    connection.execute(f"TRUNCATE {table}{cascade}")

    @pytest.mark.case("ADM-03")
    @pytest.mark.parametrize(
        "first",
        ["SELECT 1", "SET session_replication_role = replica", "SET pgtrigger.ignore = '{{{ignored}}}'"],
        ids=["plainly", "as a replica", "with triggers to be ignored"],
    )
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE entitlements_tierevent SET max_agents = 9 WHERE pgh_id = {pgh_id}",
            "DELETE FROM entitlements_tierevent WHERE pgh_id = {pgh_id}",
            "UPDATE pghistory_context SET metadata = '{{}}' WHERE id = '{context}'",
            "DELETE FROM pghistory_context WHERE id = '{context}'",
            "UPDATE entitlements_unsignedchange SET role = 'nobody' WHERE context_id = '{context}'",
            "DELETE FROM entitlements_unsignedchange WHERE context_id = '{context}'",
            "TRUNCATE entitlements_tierevent",
            "TRUNCATE entitlements_tier CASCADE",
        ],
    )
    def test_a_superuser_does_not_in_raw_sql(self, entry: Any, first: str, statement: str) -> None:
        with psql() as connection:
            rows = connection.execute(
                "SELECT tgname FROM pg_trigger WHERE tgrelid = 'entitlements_tierevent'::regclass"
            )
            ignored = ",".join(name for (name,) in rows.fetchall())
            connection.execute(first.format(ignored=ignored))
            with pytest.raises(psycopg.errors.RaiseException, match=r"append-only|Cannot update or delete"):
                connection.execute(statement.format(pgh_id=entry.pk, context=entry.pgh_context_id))

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO entitlements_tierevent SELECT * FROM entitlements_tierevent LIMIT 1",
            "INSERT INTO pghistory_context VALUES (gen_random_uuid(), now(), now(), '{}')",
            "INSERT INTO entitlements_unsignedchange SELECT * FROM entitlements_unsignedchange LIMIT 1",
            "SELECT _pgh_attach_context()",
        ],
    )
    def test_nobody_adds_by_hand(self, entry: Any, statement: str) -> None:
        with psql() as connection, pytest.raises(psycopg.errors.RaiseException, match="by the database alone"):
            connection.execute(statement)


class TestNothingHidesAChange:
    @pytest.mark.case("ADM-01")
    @pytest.mark.parametrize(
        "first",
        [
            "SET session_replication_role = replica",
            "SELECT set_config('pgtrigger.ignore', (SELECT array_agg(tgname)::text FROM pg_trigger), false)",
            "CREATE TEMP TABLE entitlements_tierevent (LIKE public.entitlements_tierevent INCLUDING ALL)",
        ],
        ids=["as a replica", "with triggers to be ignored", "with another table in the place of history"],
    )
    def test_raw_sql_is_recorded_whatever_the_session_sets(self, tiers: list[Tier], first: str) -> None:
        with psql() as connection:
            connection.execute(first)
            connection.execute("UPDATE public.entitlements_tier SET max_agents = 5 WHERE id = %s", [tiers[0].pk])
        assert [e.max_agents for e in added(tiers[0])] == [5]

    @pytest.mark.parametrize("table", sorted({shape.tracked_table for shape in shapes()}))
    def test_no_tracked_table_is_emptied_at_once_which_would_leave_no_entry(self, table: str) -> None:
        with psql() as connection, pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            connection.execute(f"TRUNCATE {table} CASCADE")


class TestTheSeal:
    """Fails when a model is tracked and its history is not protected; `manage.py migrate` does that."""

    def test_every_table_of_history_has_every_guard_and_each_always_fires(self) -> None:
        with psql() as connection:
            rows = connection.execute(
                "SELECT tgrelid::regclass::text, tgname, tgenabled::text FROM pg_trigger WHERE NOT tgisinternal"
            ).fetchall()
        always = {(table, name) for table, name, enabled in rows if enabled == "A"}
        wanted = {(table, name) for table, name, _, _ in guards(shapes())}
        assert wanted <= always
        assert {model._meta.db_table for model in event_models()} == {table for table, n in wanted if n == "is_signed"}

    def test_every_trigger_that_records_always_fires_and_knows_its_table(self) -> None:
        with psql() as connection:
            rows = connection.execute(recorders_sql()).fetchall()
        assert {table for table, *_ in rows} == {shape.tracked_table for shape in shapes()}
        assert [row[:3] for row in rows if not row[3]] == []

    def test_the_list_shows_every_kind(self) -> None:
        with psql() as connection:
            (definition,) = connection.execute("SELECT pg_get_viewdef('entitlements_historyentry')").fetchone() or ("",)
        assert all(f"FROM {shape.table} e" in definition for shape in shapes())

    def test_the_signing_function_is_ours_and_is_put_back(self) -> None:
        Context.install_pgh_attach_context_func()  # as a migration of the library would
        seal_history()
        tier = make_tier()
        assert notes_of(history(tier)[0])["source"] == "database"

    def test_every_index_of_the_list_is_there_and_valid(self) -> None:
        with psql() as connection:
            rows = connection.execute(
                "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
                "WHERE c.relname ~ 'history_(at|object|account|context)'"
            ).fetchall()
        valid = {name for name, is_valid in rows if is_valid}
        for shape in shapes():
            short = shape.table.removesuffix("event")
            assert {f"{short}_history_at", f"{short}_history_object"} <= valid
        assert "history_context_actor" in valid


def test_the_log_keeps_who_was_deleted(stella: Staff) -> None:
    steve = Staff()
    alice = make_account("alice")
    granted = override(alice, "max_agents", 5)
    steve.change(alice, name="Alice B.", support_tier=str(make_tier().pk), why="By steve")
    name, pk = alice.email, alice.pk
    steve.account.delete()
    alice.delete()
    entries = HistoryEntry.objects.filter(account_id=pk)
    assert {(e.kind, e.verb) for e in entries} >= {
        ("entitlements.Account", "update"),
        ("entitlements.Account", "delete"),
        ("entitlements.Override", "delete"),
    }
    assert entries.get(kind="entitlements.Override", verb="delete").object_id == str(granted.pk)
    assert {e.data["email"] for e in entries if e.kind == "entitlements.Account"} == {name}

-- What keeps the audit log: who is behind a row of it, always, and that nobody writes, alters or removes one.
-- Applied after every migrate (entitlements/sealing.py), so that it also holds for tables that come later, and what a
-- library's migration puts in its place does not stay. Docs: docs/audit.md, docs/adr/0019.

-- Nobody can have a trigger skipped by naming it in `pgtrigger.ignore`, which any client could set.
CREATE OR REPLACE FUNCTION public._pgtrigger_should_ignore(trigger_name name) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$ SELECT false $$;

-- Return the context of a change: one row per transaction and notes, never altered afterwards. pghistory's own function,
-- which this replaces, keeps one row for a whole request or task and rewrites it. Without notes it says which database
-- role it was, and leaves a row for support to look at.
CREATE OR REPLACE FUNCTION public._pgh_attach_context() RETURNS uuid LANGUAGE plpgsql
    SET search_path = public, pg_temp AS $$
DECLARE
    given text := coalesce(current_setting('pghistory.context_metadata', true), '');
    made uuid := nullif(current_setting('history.context', true), '');
    notes jsonb;
    is_signed boolean;
BEGIN
    -- The time is the transaction's: a context of another one, named by hand, does not pass.
    IF current_setting('history.given', true) = given
       AND EXISTS (SELECT FROM pghistory_context c WHERE c.id = made AND c.created_at = now()) THEN
        RETURN made;
    END IF;
    notes := CASE WHEN given IS JSON OBJECT THEN given ELSE '{}' END;
    is_signed := coalesce(notes ->> 'source', '') <> '';
    IF NOT is_signed THEN
        notes := notes || jsonb_build_object(
            'source', 'database', 'actor', 'database role ' || session_user,
            'application', current_setting('application_name'),
            'address', coalesce(host(inet_client_addr()), 'local socket'));
    END IF;
    made := gen_random_uuid();
    INSERT INTO pghistory_context (id, metadata, created_at, updated_at)
    VALUES (made, notes || jsonb_build_object('role', session_user), now(), now());
    PERFORM set_config('history.given', given, true), set_config('history.context', made::text, true);
    IF NOT is_signed THEN
        INSERT INTO entitlements_unsignedchange (context_id, at, role, application, address, acknowledged_by,
                                                 acknowledged_reason)
        VALUES (made, now(), session_user, notes ->> 'application', notes ->> 'address', '', '');
    END IF;
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION public.history_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'history is append-only: % refused on %', TG_OP, TG_TABLE_NAME;
END $$;

-- History is written by the triggers of what it is about, which run this one: the second on the stack.
CREATE OR REPLACE FUNCTION public.history_is_written_by_triggers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'history is written by the database alone: % refused on %', TG_OP, TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION public.history_is_signed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'history is written by the database alone: % refused on %', TG_OP, TG_TABLE_NAME;
    END IF;
    IF NEW.pgh_context_id IS NULL THEN
        NEW.pgh_context_id := _pgh_attach_context();
    END IF;
    RETURN NEW;
END $$;

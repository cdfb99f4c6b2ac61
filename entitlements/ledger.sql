-- The ledger's verbs, one statement each: PostgreSQL 15 and later, psycopg parameters.
--
-- Each is a transaction of its own: autocommit, READ COMMITTED, one admission per transaction.
-- Locks: a transaction locks one admission, then one counter (by the trigger on admissions); admit locks
-- counters (last month's, then this one's), then inserts a row that nobody else can know yet. So there is
-- no cycle. The law that keeps counters equal to their admissions is the trigger in models/ledger.py.

-- name: admit
-- One row back: admitted or not, and the budgets with the counter just after. No row: no such account.
-- `who` resolves everything fresh. The SELECT under INSERT judges what the snapshot shows, so a spent
-- budget is refused by reading alone: no lock, no write. DO UPDATE judges again on the locked row: that
-- makes it exact. A counter's first INSERT does not pass through DO UPDATE, so it is judged there too.
-- Refused although the counter would fit a moment later: it moved in between, or the month turned: run it again.
WITH who AS (
    SELECT a.id AS account_id, a.is_active, t.id AS tier_id, t.slug AS tier, t.version AS tier_version,
           m.at, m.minute, m.period,
           m.at + make_interval(secs => %(lifetime)s) AS expires_at,
           o.v AS override_values, o.ids AS override_ids,
           CASE WHEN o.v ? 'maxRequestsPerPeriod' THEN (o.v ->> 'maxRequestsPerPeriod')::bigint
                ELSE t.max_requests_per_period END AS limit_requests,
           CASE WHEN o.v ? 'maxTokensPerPeriod' THEN (o.v ->> 'maxTokensPerPeriod')::bigint
                ELSE t.max_tokens_per_period END AS limit_tokens,
           CASE WHEN o.v ? 'maxComputeMsPerPeriod' THEN (o.v ->> 'maxComputeMsPerPeriod')::bigint
                ELSE t.max_compute_ms_per_period END AS limit_compute_ms,
           CASE WHEN o.v ? 'maxConcurrentInvocations' THEN (o.v ->> 'maxConcurrentInvocations')::bigint
                ELSE t.max_concurrent_invocations END AS limit_in_flight,
           CASE WHEN o.v ? 'requestsPerMinute' THEN (o.v ->> 'requestsPerMinute')::bigint
                ELSE t.requests_per_minute END AS limit_minute,
           -- Tool quotas judge only calls that may use the tool: elsewhere 0 would mean "no invocations".
           CASE WHEN 'toolCalls' = ANY (%(tools)s::text[]) THEN q.tool_calls END AS limit_tool_calls,
           CASE WHEN 'codeExecutionSeconds' = ANY (%(tools)s::text[]) THEN q.code_seconds * 1000 END AS limit_code_ms,
           CASE WHEN 'browserSessions' = ANY (%(tools)s::text[]) THEN q.browser_sessions END AS limit_browser_sessions,
           %(runtime)s = 'agentcore' AND NOT (
               g.agentcore
               AND (g.memory OR 'memory' <> ALL (%(capabilities)s::text[]))
               AND (g.code AND q.tool_calls > 0 AND q.code_seconds > 0
                    OR 'codeInterpreter' <> ALL (%(capabilities)s::text[]))
               AND (g.browser AND q.tool_calls > 0 AND q.browser_sessions > 0
                    OR 'browser' <> ALL (%(capabilities)s::text[]))) AS gated
      FROM (SELECT at, date_trunc('minute', at) AS minute,
                   (date_trunc('month', at AT TIME ZONE 'UTC'))::date AS period
              FROM (SELECT coalesce(%(at)s::timestamptz, now()) AS at) clock) m   -- tests pass `at`
      JOIN entitlements_account a ON a.id = %(account)s::uuid
      JOIN entitlements_tier t ON t.id = CASE
           WHEN a.support_tier_id IS NOT NULL AND (a.support_tier_until IS NULL OR a.support_tier_until > m.at)
               THEN a.support_tier_id
           WHEN a.billing_tier_id IS NOT NULL AND (a.billing_tier_until IS NULL OR a.billing_tier_until > m.at)
               THEN a.billing_tier_id
           ELSE (SELECT id FROM entitlements_tier WHERE is_default) END
      LEFT JOIN LATERAL (SELECT jsonb_object_agg(v.key, v.value ORDER BY v.id) AS v,
                                jsonb_object_agg(v.key, v.id ORDER BY v.id) AS ids
                           FROM entitlements_override v
                          WHERE v.account_id = a.id AND (v.ends_at IS NULL OR v.ends_at > m.at)) o ON true
     CROSS JOIN LATERAL (SELECT
           coalesce((o.v ->> 'maxToolCallsPerPeriod')::bigint, t.max_tool_calls_per_period, 0) AS tool_calls,
           coalesce((o.v ->> 'maxCodeExecutionSecondsPerPeriod')::bigint, t.max_code_execution_seconds_per_period, 0)
               AS code_seconds,
           coalesce((o.v ->> 'maxBrowserSessionsPerPeriod')::bigint, t.max_browser_sessions_per_period, 0)
               AS browser_sessions) q
     CROSS JOIN LATERAL (SELECT
           coalesce((o.v ->> 'agentcoreEnabled')::int = 1, t.agentcore_enabled) AS agentcore,
           coalesce((o.v ->> 'memoryEnabled')::int = 1, t.memory_enabled) AS memory,
           coalesce((o.v ->> 'codeInterpreterEnabled')::int = 1, t.code_interpreter_enabled) AS code,
           coalesce((o.v ->> 'browserEnabled')::int = 1, t.browser_enabled) AS browser) g
), carried AS (
    -- What began last month and still runs takes a slot too. Locked, so that it cannot grow meanwhile; in the
    -- first minute even when it shows 0, because an admission begun before midnight may be about to raise it.
    SELECT c.in_flight FROM who w
      JOIN entitlements_periodcounter c
        ON c.account_id = w.account_id AND c.period = (w.period - interval '1 month')::date
     WHERE c.in_flight > 0 OR w.at < (w.period::timestamp AT TIME ZONE 'UTC') + interval '1 min'
       FOR NO KEY UPDATE OF c
), seen AS (
    SELECT w.*, coalesce((SELECT in_flight FROM carried), 0) AS carried,
           coalesce(c.used_requests, 0) AS used_requests, coalesce(c.used_tokens, 0) AS used_tokens,
           coalesce(c.used_compute_ms, 0) AS used_compute_ms, coalesce(c.used_tool_calls, 0) AS used_tool_calls,
           coalesce(c.used_code_ms, 0) AS used_code_ms, coalesce(c.used_browser_sessions, 0) AS used_browser_sessions,
           coalesce(c.held_tokens, 0) AS held_tokens, coalesce(c.held_compute_ms, 0) AS held_compute_ms,
           coalesce(c.held_tool_calls, 0) AS held_tool_calls, coalesce(c.held_code_ms, 0) AS held_code_ms,
           coalesce(c.held_browser_sessions, 0) AS held_browser_sessions, coalesce(c.in_flight, 0) AS in_flight,
           CASE WHEN c.minute >= w.minute THEN c.minute_requests ELSE 0 END AS minute_requests
      FROM who w LEFT JOIN entitlements_periodcounter c USING (account_id, period)
), counter AS (
    INSERT INTO entitlements_periodcounter AS c (account_id, period, used_requests, held_tokens, held_compute_ms,
        held_tool_calls, held_code_ms, held_browser_sessions, in_flight, minute, minute_requests)
    SELECT account_id, period, 1, %(tokens)s::bigint, %(compute_ms)s::bigint, %(tool_calls)s::bigint,
           %(code_ms)s::bigint, %(browser_sessions)s::bigint, 1, minute, 1
      FROM seen
     WHERE is_active AND NOT gated
       AND (used_requests + 1 <= limit_requests) IS NOT FALSE
       AND (used_tokens + held_tokens + greatest(%(tokens)s::bigint, 1) <= limit_tokens) IS NOT FALSE
       AND (used_compute_ms + held_compute_ms + greatest(%(compute_ms)s::bigint, 1) <= limit_compute_ms) IS NOT FALSE
       AND (used_tool_calls + held_tool_calls + greatest(%(tool_calls)s::bigint, 1) <= limit_tool_calls) IS NOT FALSE
       AND (used_code_ms + held_code_ms + greatest(%(code_ms)s::bigint, 1) <= limit_code_ms) IS NOT FALSE
       AND (used_browser_sessions + held_browser_sessions + greatest(%(browser_sessions)s::bigint, 1)
            <= limit_browser_sessions) IS NOT FALSE
       AND (in_flight + carried + 1 <= limit_in_flight) IS NOT FALSE
       AND (minute_requests + 1 <= limit_minute) IS NOT FALSE
    ON CONFLICT (account_id, period) DO UPDATE SET
        used_requests = c.used_requests + 1,
        held_tokens = c.held_tokens + excluded.held_tokens,
        held_compute_ms = c.held_compute_ms + excluded.held_compute_ms,
        held_tool_calls = c.held_tool_calls + excluded.held_tool_calls,
        held_code_ms = c.held_code_ms + excluded.held_code_ms,
        held_browser_sessions = c.held_browser_sessions + excluded.held_browser_sessions,
        in_flight = c.in_flight + 1,
        minute = greatest(c.minute, excluded.minute),
        minute_requests = CASE WHEN c.minute >= excluded.minute THEN c.minute_requests + 1 ELSE 1 END
    WHERE (SELECT (c.used_requests + 1 <= limit_requests) IS NOT FALSE
              AND (c.used_tokens + c.held_tokens + greatest(%(tokens)s::bigint, 1) <= limit_tokens) IS NOT FALSE
              AND (c.used_compute_ms + c.held_compute_ms + greatest(%(compute_ms)s::bigint, 1)
                   <= limit_compute_ms) IS NOT FALSE
              AND (c.used_tool_calls + c.held_tool_calls + greatest(%(tool_calls)s::bigint, 1)
                   <= limit_tool_calls) IS NOT FALSE
              AND (c.used_code_ms + c.held_code_ms + greatest(%(code_ms)s::bigint, 1) <= limit_code_ms) IS NOT FALSE
              AND (c.used_browser_sessions + c.held_browser_sessions + greatest(%(browser_sessions)s::bigint, 1)
                   <= limit_browser_sessions) IS NOT FALSE
              AND (c.in_flight + carried + 1 <= limit_in_flight) IS NOT FALSE
              AND (CASE WHEN c.minute >= seen.minute THEN c.minute_requests ELSE 0 END + 1
                   <= limit_minute) IS NOT FALSE
              -- Got the lock only after the month had turned: it belongs into the new one.
              AND (%(at)s::timestamptz IS NOT NULL
                   OR clock_timestamp() < ((seen.period + interval '1 month')::timestamp AT TIME ZONE 'UTC'))
             FROM seen)
    RETURNING c.*
), entry AS (
    INSERT INTO entitlements_admission (id, account_id, agent_id, deployment_id, token_id, runtime, source, outcome,
        period, tier, tier_version, overrides, admitted_at, expires_at, trace_id, session_id, delegated_by,
        limit_requests, limit_tokens, limit_compute_ms, limit_tool_calls, limit_code_ms, limit_browser_sessions,
        limit_in_flight, limit_minute,
        then_requests, then_tokens, then_compute_ms, then_tool_calls, then_code_ms, then_browser_sessions,
        then_in_flight, then_minute,
        held_tokens, held_compute_ms, held_tool_calls, held_code_ms, held_browser_sessions)
    SELECT %(id)s::uuid, w.account_id, %(agent)s::uuid, %(deployment)s::uuid, %(token)s::uuid, %(runtime)s, 'gateway',
        'open', w.period, w.tier, w.tier_version,
        CASE WHEN w.override_ids IS NOT NULL
             THEN jsonb_build_object('ids', w.override_ids, 'values', w.override_values) END,
        w.at, w.expires_at, %(trace)s, %(session)s, %(delegated_by)s,
        w.limit_requests, w.limit_tokens, w.limit_compute_ms, w.limit_tool_calls, w.limit_code_ms,
        w.limit_browser_sessions, w.limit_in_flight, w.limit_minute,
        c.used_requests, c.used_tokens + c.held_tokens, c.used_compute_ms + c.held_compute_ms,
        c.used_tool_calls + c.held_tool_calls, c.used_code_ms + c.held_code_ms,
        c.used_browser_sessions + c.held_browser_sessions, c.in_flight + w.carried, c.minute_requests,
        %(tokens)s::bigint, %(compute_ms)s::bigint, %(tool_calls)s::bigint, %(code_ms)s::bigint,
        %(browser_sessions)s::bigint
      FROM seen w CROSS JOIN counter c
    RETURNING id, then_requests, then_tokens, then_compute_ms
)
SELECT e.id IS NOT NULL AS admitted, e.id, s.limit_requests, s.limit_tokens, s.limit_compute_ms, e.then_requests,
       e.then_tokens, e.then_compute_ms
  FROM seen s LEFT JOIN entry e ON true

-- name: settle
-- Closes an open admission, once. On a closed one it only folds in, as observe does. Repeats write nothing.
-- The gateway is a trusted observer: what was charged at the hold, because nobody was left to observe, is an
-- estimate, and the first trusted observation replaces it, down as well as up. Its own estimate of tokens from
-- the text does not stand against what a trusted report said before. Tools that could not be looked at yet are
-- charged at the hold, and marked so (see_tools). floor_*: what was observed while an estimate stood in its place;
-- replacing the estimate never goes below it, so the order in which observers speak changes nothing.
UPDATE entitlements_admission SET
    charged_requests = 1,
    charged_tokens = CASE WHEN estimate_stands THEN greatest(%(tokens)s::bigint, floor_tokens)
                          WHEN %(tokens_estimated)s AND observed_at IS NOT NULL THEN charged_tokens
                          ELSE greatest(charged_tokens, %(tokens)s::bigint) END,
    charged_compute_ms = CASE WHEN estimate_stands THEN greatest(%(compute_ms)s::bigint, floor_compute_ms)
                              ELSE greatest(charged_compute_ms, %(compute_ms)s::bigint) END,
    charged_tool_calls = greatest(CASE WHEN estimate_stands THEN floor_tool_calls ELSE charged_tool_calls END,
                                  %(tool_calls)s::bigint,
                                  CASE WHEN %(tools_unseen)s AND settlement = '' THEN held_tool_calls END),
    charged_code_ms = greatest(CASE WHEN estimate_stands THEN floor_code_ms ELSE charged_code_ms END,
                               %(code_ms)s::bigint,
                               CASE WHEN %(tools_unseen)s AND settlement = '' THEN held_code_ms END),
    charged_browser_sessions = greatest(CASE WHEN estimate_stands THEN floor_browser_sessions
                                             ELSE charged_browser_sessions END,
                                        %(browser_sessions)s::bigint,
                                        CASE WHEN %(tools_unseen)s AND settlement = '' THEN held_browser_sessions END),
    floor_tool_calls = CASE WHEN %(tools_unseen)s AND settlement = '' AND NOT estimate_stands
                            THEN greatest(floor_tool_calls, charged_tool_calls) ELSE floor_tool_calls END,
    floor_code_ms = CASE WHEN %(tools_unseen)s AND settlement = '' AND NOT estimate_stands
                         THEN greatest(floor_code_ms, charged_code_ms) ELSE floor_code_ms END,
    floor_browser_sessions = CASE WHEN %(tools_unseen)s AND settlement = '' AND NOT estimate_stands
                                  THEN greatest(floor_browser_sessions, charged_browser_sessions)
                                  ELSE floor_browser_sessions END,
    estimate_stands = false,
    tokens_estimated = CASE WHEN settlement = '' THEN %(tokens_estimated)s AND observed_at IS NULL
                            ELSE tokens_estimated END,
    tools_estimated = CASE WHEN settlement = '' THEN %(tools_unseen)s ELSE tools_estimated END,
    outcome = CASE outcome WHEN 'open' THEN %(outcome)s WHEN 'voided' THEN 'failed' ELSE outcome END,
    error_class = coalesce(error_class, %(error_class)s::text),
    latency_ms = coalesce(latency_ms, %(latency_ms)s::int),
    settlement = CASE WHEN settlement = '' THEN %(settlement)s ELSE settlement END,
    settlement_mac = CASE WHEN settlement = '' THEN %(settlement_mac)s ELSE settlement_mac END,
    settled_at = coalesce(settled_at, now())
 WHERE id = %(id)s::uuid
   AND (outcome IN ('open', 'voided') OR estimate_stands OR settlement = ''
        OR charged_tokens < %(tokens)s::bigint OR charged_compute_ms < %(compute_ms)s::bigint
        OR charged_tool_calls < %(tool_calls)s::bigint OR charged_code_ms < %(code_ms)s::bigint
        OR charged_browser_sessions < %(browser_sessions)s::bigint)
RETURNING outcome, charged_requests, charged_tokens, charged_compute_ms, charged_tool_calls, charged_code_ms,
          charged_browser_sessions, tokens_estimated

-- name: see_tools
-- Folds in what the control plane saw of an invocation's tools at the provider. Where they were charged at the hold,
-- because it could not look, this look and what the gateway signed replace the hold, down as well as up.
UPDATE entitlements_admission SET
    charged_tool_calls = greatest(CASE WHEN tools_estimated THEN split_part(settlement, '|', 6)::bigint
                                       ELSE charged_tool_calls END, floor_tool_calls, %(tool_calls)s::bigint),
    charged_code_ms = greatest(CASE WHEN tools_estimated THEN split_part(settlement, '|', 7)::bigint
                                    ELSE charged_code_ms END, floor_code_ms, %(code_ms)s::bigint),
    charged_browser_sessions = greatest(CASE WHEN tools_estimated THEN split_part(settlement, '|', 8)::bigint
                                             ELSE charged_browser_sessions END, floor_browser_sessions,
                                        %(browser_sessions)s::bigint),
    tools_estimated = false
 WHERE id = %(id)s::uuid AND outcome <> 'voided'
   AND (tools_estimated OR charged_tool_calls < %(tool_calls)s::bigint OR charged_code_ms < %(code_ms)s::bigint
        OR charged_browser_sessions < %(browser_sessions)s::bigint)
RETURNING charged_tool_calls, charged_code_ms, charged_browser_sessions

-- name: tools_to_see
-- Closed invocations whose tools are still charged at the hold, by deployment.
SELECT deployment_id, array_agg(id) AS ids FROM entitlements_admission WHERE tools_estimated GROUP BY deployment_id

-- name: recent
-- What a deployment's calls used lately: a high percentile of the last fifty that somebody observed.
SELECT count(*) AS calls,
       coalesce(percentile_disc(0.95) WITHIN GROUP (ORDER BY charged_tokens), 0) AS tokens,
       coalesce(percentile_disc(0.95) WITHIN GROUP (ORDER BY charged_compute_ms), 0) AS compute_ms,
       coalesce(percentile_disc(0.95) WITHIN GROUP (ORDER BY charged_tool_calls), 0) AS tool_calls,
       coalesce(percentile_disc(0.95) WITHIN GROUP (ORDER BY charged_code_ms), 0) AS code_ms,
       coalesce(percentile_disc(0.95) WITHIN GROUP (ORDER BY charged_browser_sessions), 0) AS browser_sessions
  FROM (SELECT * FROM entitlements_admission
         WHERE deployment_id = %(deployment)s::uuid AND held_compute_ms > 0
           AND outcome IN ('succeeded', 'failed') AND NOT estimate_stands AND NOT tools_estimated
         ORDER BY id DESC LIMIT 50) settled

-- name: whose
-- Which invocation of a deployment something belongs to that began at an instant: the one that it names, else the
-- newest admitted before it (within the clocks' difference), else the newest.
SELECT coalesce(
    (SELECT id FROM entitlements_admission
      WHERE id = %(named)s::uuid AND deployment_id = %(deployment)s::uuid AND outcome <> 'voided'),
    (SELECT id FROM entitlements_admission
      WHERE deployment_id = %(deployment)s::uuid AND runtime = 'agentcore' AND outcome <> 'voided'
        AND admitted_at <= %(at)s::timestamptz + interval '2 s'
      ORDER BY id DESC LIMIT 1),
    (SELECT id FROM entitlements_admission
      WHERE deployment_id = %(deployment)s::uuid AND runtime = 'agentcore' AND outcome <> 'voided'
      ORDER BY id DESC LIMIT 1)) AS id

-- name: observe
-- Folds one accepted report into its admission. It commutes and only raises, but for the gateway's estimate of tokens
-- from the text, which the first trusted report replaces; evidence beats void: the request
-- comes back, as failed. A claim from beside user code (trusted = false) never replaces an estimate downwards,
-- and never sets observed_at, which says that somebody trusted has seen it; `reports` counts both.
-- No row: no such admission of this deployment.
UPDATE entitlements_admission SET
    charged_requests = 1,
    charged_tokens = CASE WHEN %(trusted)s AND (estimate_stands OR tokens_estimated AND observed_at IS NULL)
                              THEN greatest(%(tokens)s::bigint, floor_tokens)
                          ELSE greatest(charged_tokens, %(tokens)s::bigint) END,
    charged_compute_ms = greatest(CASE WHEN estimate_stands AND %(trusted)s THEN floor_compute_ms
                                       ELSE charged_compute_ms END, %(compute_ms)s::bigint),
    charged_tool_calls = greatest(CASE WHEN estimate_stands AND %(trusted)s THEN floor_tool_calls
                                       ELSE charged_tool_calls END, %(tool_calls)s::bigint),
    charged_code_ms = greatest(CASE WHEN estimate_stands AND %(trusted)s THEN floor_code_ms
                                    ELSE charged_code_ms END, %(code_ms)s::bigint),
    charged_browser_sessions = greatest(CASE WHEN estimate_stands AND %(trusted)s THEN floor_browser_sessions
                                             ELSE charged_browser_sessions END, %(browser_sessions)s::bigint),
    floor_tokens = CASE WHEN %(trusted)s THEN floor_tokens ELSE greatest(floor_tokens, %(tokens)s::bigint) END,
    floor_compute_ms = CASE WHEN %(trusted)s THEN floor_compute_ms
                            ELSE greatest(floor_compute_ms, %(compute_ms)s::bigint) END,
    floor_tool_calls = CASE WHEN %(trusted)s AND NOT tools_estimated THEN floor_tool_calls
                            ELSE greatest(floor_tool_calls, %(tool_calls)s::bigint) END,
    floor_code_ms = CASE WHEN %(trusted)s AND NOT tools_estimated THEN floor_code_ms
                         ELSE greatest(floor_code_ms, %(code_ms)s::bigint) END,
    floor_browser_sessions = CASE WHEN %(trusted)s AND NOT tools_estimated THEN floor_browser_sessions
                                  ELSE greatest(floor_browser_sessions, %(browser_sessions)s::bigint) END,
    estimate_stands = estimate_stands AND NOT %(trusted)s,
    tokens_estimated = CASE WHEN %(trusted)s AND observed_at IS NULL THEN %(tokens_estimated)s
                            ELSE tokens_estimated END,
    outcome = CASE outcome WHEN 'voided' THEN 'failed' ELSE outcome END,
    reports = reports + 1,
    observed_at = CASE WHEN %(trusted)s THEN coalesce(observed_at, now()) ELSE observed_at END
 WHERE id = %(id)s::uuid AND deployment_id = %(deployment)s::uuid
RETURNING account_id, agent_id, period, outcome

-- name: void
-- Only when the provider was certainly not reached. A report, or a tool seen at work, says otherwise: then it is failed.
UPDATE entitlements_admission SET
    charged_requests = CASE WHEN reports = 0 AND charged_tool_calls + charged_code_ms + charged_browser_sessions = 0
                            THEN 0 ELSE 1 END,
    outcome = CASE WHEN reports = 0 AND charged_tool_calls + charged_code_ms + charged_browser_sessions = 0
                   THEN 'voided' ELSE 'failed' END,
    error_class = %(error_class)s::text, settled_at = now(),
    settlement = %(settlement)s, settlement_mac = %(settlement_mac)s
 WHERE id = %(id)s::uuid AND outcome = 'open'
RETURNING outcome

-- name: overdue
-- What the periodic task then closes, one by one. No lock: expire asks again.
SELECT id FROM entitlements_admission
 WHERE outcome = 'open' AND expires_at <= coalesce(%(at)s::timestamptz, now())
 ORDER BY expires_at LIMIT %(batch)s

-- name: expire
-- Where something was held and nobody trusted observed it, at the hold, marked as an estimate; otherwise at what
-- was observed. The request counts.
UPDATE entitlements_admission SET
    charged_tokens = CASE WHEN observed_at IS NULL THEN greatest(charged_tokens, held_tokens)
                     ELSE charged_tokens END,
    charged_compute_ms = CASE WHEN observed_at IS NULL THEN greatest(charged_compute_ms, held_compute_ms)
                         ELSE charged_compute_ms END,
    charged_tool_calls = CASE WHEN observed_at IS NULL THEN greatest(charged_tool_calls, held_tool_calls)
                         ELSE charged_tool_calls END,
    charged_code_ms = CASE WHEN observed_at IS NULL THEN greatest(charged_code_ms, held_code_ms)
                      ELSE charged_code_ms END,
    charged_browser_sessions = CASE WHEN observed_at IS NULL THEN greatest(charged_browser_sessions, held_browser_sessions)
                               ELSE charged_browser_sessions END,
    estimate_stands = observed_at IS NULL AND held_tokens + held_compute_ms + held_tool_calls + held_code_ms
                      + held_browser_sessions > 0,
    outcome = 'expired', settled_at = now()
 WHERE id = %(id)s::uuid AND outcome = 'open' AND expires_at <= coalesce(%(at)s::timestamptz, now())
RETURNING id

-- name: adopt
-- A report whose invocation is unknown becomes an admission of its own, under the id that it names, so that its
-- repeats fold into it. It counts and is never refused. No row: the id exists after all: observe it.
WITH entry AS (
    INSERT INTO entitlements_admission (id, account_id, agent_id, deployment_id, runtime, source, period, tier,
        admitted_at, expires_at, observed_at, settled_at, outcome, error_class, reports, charged_tokens,
        charged_compute_ms, charged_tool_calls, charged_code_ms, charged_browser_sessions, held_tokens,
        held_compute_ms, held_tool_calls, held_code_ms, held_browser_sessions, trace_id)
    VALUES (%(id)s::uuid, %(account)s::uuid, %(agent)s::uuid, %(deployment)s::uuid, %(runtime)s, 'report',
        (date_trunc('month', %(at)s::timestamptz AT TIME ZONE 'UTC'))::date, '', %(at)s::timestamptz,
        %(at)s::timestamptz, now(), now(), %(outcome)s, %(error_class)s::text, 1, %(tokens)s::bigint,
        %(compute_ms)s::bigint, %(tool_calls)s::bigint, %(code_ms)s::bigint, %(browser_sessions)s::bigint,
        0, 0, 0, 0, 0, %(trace)s)
    ON CONFLICT (id) DO NOTHING
    RETURNING *
), journal AS (
    INSERT INTO entitlements_movement (account_id, agent_id, deployment_id, runtime, hour, requests, tokens,
        compute_ms, tool_calls, code_ms, browser_sessions, errors, error_class)
    SELECT account_id, agent_id, deployment_id, runtime, date_trunc('hour', admitted_at, 'UTC'), 1, charged_tokens,
        charged_compute_ms, charged_tool_calls, charged_code_ms, charged_browser_sessions,
        CASE WHEN outcome = 'failed' THEN 1 ELSE 0 END, coalesce(error_class, '')
      FROM entry
)
INSERT INTO entitlements_periodcounter AS c (account_id, period, used_requests, used_tokens, used_compute_ms,
    used_tool_calls, used_code_ms, used_browser_sessions)
SELECT account_id, period, charged_requests, charged_tokens, charged_compute_ms, charged_tool_calls,
       charged_code_ms, charged_browser_sessions FROM entry
ON CONFLICT (account_id, period) DO UPDATE SET
    used_requests = c.used_requests + excluded.used_requests,
    used_tokens = c.used_tokens + excluded.used_tokens,
    used_compute_ms = c.used_compute_ms + excluded.used_compute_ms,
    used_tool_calls = c.used_tool_calls + excluded.used_tool_calls,
    used_code_ms = c.used_code_ms + excluded.used_code_ms,
    used_browser_sessions = c.used_browser_sessions + excluded.used_browser_sessions
RETURNING period

-- name: adjust
-- Staff give back or add, in force at once. Below 0: refused by the constraint. No counter: nothing to adjust.
WITH c AS (
    UPDATE entitlements_periodcounter SET
        used_requests = used_requests + %(requests)s::bigint, used_tokens = used_tokens + %(tokens)s::bigint,
        used_compute_ms = used_compute_ms + %(compute_ms)s::bigint,
        used_tool_calls = used_tool_calls + %(tool_calls)s::bigint, used_code_ms = used_code_ms + %(code_ms)s::bigint,
        used_browser_sessions = used_browser_sessions + %(browser_sessions)s::bigint
     WHERE account_id = %(account)s::uuid AND period = %(period)s::date
    RETURNING account_id, period
)
INSERT INTO entitlements_adjustment (account_id, period, requests, tokens, compute_ms, tool_calls, code_ms,
                                     browser_sessions, actor, reason)
SELECT account_id, period, %(requests)s::bigint, %(tokens)s::bigint, %(compute_ms)s::bigint, %(tool_calls)s::bigint,
       %(code_ms)s::bigint, %(browser_sessions)s::bigint, %(actor)s, %(reason)s FROM c
RETURNING id

-- name: verify
-- Every counter that differs from its admissions. One statement, so one snapshot: two queries would report
-- differences that are only time passing. Parameters narrow it to one account or to months from one on.
WITH a AS (
    SELECT account_id, period, count(*) AS admissions, sum(charged_requests) AS used_requests,
           sum(charged_tokens) AS used_tokens, sum(charged_compute_ms) AS used_compute_ms,
           sum(charged_tool_calls) AS used_tool_calls, sum(charged_code_ms) AS used_code_ms,
           sum(charged_browser_sessions) AS used_browser_sessions, sum(holding_tokens) AS held_tokens,
           sum(holding_compute_ms) AS held_compute_ms, sum(holding_tool_calls) AS held_tool_calls,
           sum(holding_code_ms) AS held_code_ms, sum(holding_browser_sessions) AS held_browser_sessions,
           sum(running) AS in_flight
      FROM entitlements_admission
     WHERE account_id = coalesce(%(account)s::uuid, account_id) AND period >= %(since)s::date
     GROUP BY account_id, period
), j AS (
    SELECT account_id, period, sum(requests) AS requests, sum(tokens) AS tokens, sum(compute_ms) AS compute_ms,
           sum(tool_calls) AS tool_calls, sum(code_ms) AS code_ms, sum(browser_sessions) AS browser_sessions
      FROM entitlements_adjustment GROUP BY account_id, period
), c AS (
    SELECT * FROM entitlements_periodcounter
     WHERE account_id = coalesce(%(account)s::uuid, account_id) AND period >= %(since)s::date
)
SELECT account_id, period, to_jsonb(c) AS counter, to_jsonb(a) AS admissions, to_jsonb(j) AS adjustments
  FROM c FULL JOIN a USING (account_id, period) LEFT JOIN j USING (account_id, period)
 WHERE (c.used_requests, c.used_tokens, c.used_compute_ms, c.used_tool_calls, c.used_code_ms,
        c.used_browser_sessions, c.held_tokens, c.held_compute_ms, c.held_tool_calls, c.held_code_ms,
        c.held_browser_sessions, c.in_flight)
   IS DISTINCT FROM
       (coalesce(a.used_requests, 0) + coalesce(j.requests, 0), coalesce(a.used_tokens, 0) + coalesce(j.tokens, 0),
        coalesce(a.used_compute_ms, 0) + coalesce(j.compute_ms, 0),
        coalesce(a.used_tool_calls, 0) + coalesce(j.tool_calls, 0), coalesce(a.used_code_ms, 0) + coalesce(j.code_ms, 0),
        coalesce(a.used_browser_sessions, 0) + coalesce(j.browser_sessions, 0),
        coalesce(a.held_tokens, 0), coalesce(a.held_compute_ms, 0), coalesce(a.held_tool_calls, 0),
        coalesce(a.held_code_ms, 0), coalesce(a.held_browser_sessions, 0), coalesce(a.in_flight, 0))
 ORDER BY account_id, period

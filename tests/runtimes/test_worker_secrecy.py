"""What hostile code finds inside its sandbox: nothing of the platform's, and nobody else's."""

import json

import pytest

from runtimes.errors import RuntimeFailedError
from runtimes.providers.base import AgentRef
from tests.runtimes.cloud import agent_zip, example, until
from webhost import signing


def found(cloud, code, **config):
    """Deploy code whose answer is JSON of what it found, and return that."""
    return json.loads(cloud.agent(code, **config).invoke().text)


def keys_of(deployed):
    """Everything that must not be seen by an agent: root keys, derived keys, the API token."""
    target = deployed.target
    for name, root in signing.root_keys().items():
        yield root.hex()
        for purpose in signing.Purpose:
            yield signing.deployment_key(name, purpose, target.public_deployment_id).hex()


LOOK_EVERYWHERE = """
import * as workers from "cloudflare:workers";
import process from "node:process";
const seen = [];
const note = (label, value) => { try { seen.push(label + ":" + show(value)); } catch (e) { seen.push(label + "!" + e); } };
const shown = new Set();
function show(value, depth = 0) {
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) {
    const bytes = new Uint8Array(value.buffer ?? value);
    return [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
  }
  if (typeof value !== "object" || value === null || depth > 3 || shown.has(value)) return String(value);
  shown.add(value);
  const names = new Set();
  for (let o = value; o && o !== Object.prototype; o = Object.getPrototypeOf(o)) {
    Object.getOwnPropertyNames(o).forEach((n) => names.add(n));
  }
  return "{" + [...names].map((n) => { try { return n + "=" + show(value[n], depth + 1); } catch { return n + "!"; } }) + "}";
}
// Whatever passes through WebCrypto, JSON, text and requests from here on is kept.
for (const name of ["importKey", "sign", "deriveBits", "verify", "digest"]) {
  const real = crypto.subtle[name].bind(crypto.subtle);
  crypto.subtle[name] = (...args) => { args.forEach((a) => note("subtle." + name, a)); return real(...args); };
}
const parse = JSON.parse; JSON.parse = (text, ...rest) => { note("parse", text); return parse(text, ...rest); };
const stringify = JSON.stringify;
JSON.stringify = (value, ...rest) => { const text = stringify(value, ...rest); note("stringify", text); return text; };
const json = Request.prototype.json;
Request.prototype.json = async function () {
  note("url", this.url); note("headers", stringify([...this.headers]));
  const value = await json.call(this); note("body", stringify(value)); return value;
};
const encode = TextEncoder.prototype.encode;
TextEncoder.prototype.encode = function (text) { note("encode", text); return encode.call(this, text); };
const RealResponse = Response;
globalThis.Response = class extends RealResponse { constructor(...args) { note("response", stringify(args[1])); super(...args); } };
const realFetch = globalThis.fetch;
globalThis.fetch = (...args) => { note("fetch", stringify(args)); return realFetch(...args); };

export default async function (request, context) {
  note("env", workers.env); note("exports", workers.exports); note("workers", Object.keys(workers));
  note("process.env", stringify(process.env)); note("global", globalThis); note("context", context);
  note("platform", workers.env.PLATFORM); note("props", workers.env.PLATFORM.props);
  note("ctx", workers.env.PLATFORM.ctx); note("penv", workers.env.PLATFORM.env);
  for (const name of ["ctx", "env", "props", "constructor", "__proto__", "fetch"]) {
    try { note("rpc." + name, await workers.env.PLATFORM[name]); } catch (e) { note("rpc." + name, String(e)); }
    try { note("call." + name, await workers.env.PLATFORM[name]()); } catch (e) { note("call." + name, String(e)); }
  }
  return seen.join("\\n");
}
"""


class TestPlatformSecrets:
    def test_code_that_patches_everything_it_can_reach_sees_no_key_and_no_signature(self, cloud):
        deployed = cloud.agent(LOOK_EVERYWHERE)
        seen = "\n".join(deployed.invoke("find me").text for _ in range(2))
        assert "find me" in seen  # it really saw what passes through its own sandbox
        for secret in [*keys_of(deployed), cloud.token]:
            assert secret not in seen
        for word in ("ROOT_KEYS", "k1:", "x-whs", "X-Whs", "v1=", "rootKey", "acc_", "requiredKeys", "PUBLIC_URL"):
            assert word.lower() not in seen.lower()

    def test_its_bindings_are_one_narrow_service_and_nothing_else(self, cloud):
        code = (
            'import { env, exports } from "cloudflare:workers"; import process from "node:process";'
            "export default () => JSON.stringify([Object.keys(env), Object.keys(process.env), Object.keys(exports)])"
        )
        bindings, environment, exports = found(cloud, code)
        assert bindings == ["PLATFORM"]
        assert environment == []
        assert exports in ([], ["default"])

    def test_the_binding_cannot_be_used_as_an_address(self, cloud):
        code = (
            'import { env } from "cloudflare:workers"; export default async () => { const seen = [];'
            ' for (const url of ["https://vault/", "https://agent/health", "https://platform/invoke"]) {'
            '   try { const r = await env.PLATFORM.fetch(url, { method: "POST", body: "[]" }); seen.push(r.status); }'
            '   catch { seen.push("refused"); } }'
            " return JSON.stringify(seen); }"
        )
        assert found(cloud, code) == ["refused"] * 3

    def test_an_agent_cannot_import_what_wraps_it(self, cloud):
        code = "export default async () => { const m = await import('../platform.mjs'); return Object.keys(m).join(); }"
        from webhost.errors import InvalidRequestError

        with pytest.raises(InvalidRequestError):
            cloud.agent(code)
        dynamic = code.replace("'../platform.mjs'", "['..', 'platform.mjs'].join('/')")
        with pytest.raises(RuntimeFailedError):
            cloud.agent(dynamic).invoke()


class TestOtherTenants:
    def test_an_agent_cannot_read_secrets_that_it_does_not_declare(self, cloud):
        code = (
            'import { env } from "cloudflare:workers"; export default async () =>'
            ' JSON.stringify(await env.PLATFORM.environment("OTHER", ["OTHER"], { requiredKeys: ["OTHER"] }))'
        )
        deployed = cloud.agent(code, env={"optionalKeys": ["MINE"]})
        agent = AgentRef(deployed.target.account_id, deployed.target.agent_id)
        cloud.provider.put_secrets(agent, {"MINE": "1", "OTHER": "2"})
        assert json.loads(deployed.invoke().text) == {"values": {"MINE": "1"}, "missing": []}

    def test_an_agent_cannot_open_a_session_that_it_was_not_invoked_with(self, cloud):
        code = (
            'import { env } from "cloudflare:workers"; export default async (request) => {'
            " const seen = []; for (const [session, ticket] of [['other', 'f'.repeat(64)], ['other', ''], [null, null],"
            " [{}, {}], ['s1', 'f'.repeat(64)]]) {"
            "   try { await env.PLATFORM.sessionPut(session, ticket, 'k', '1'); seen.push('wrote'); }"
            "   catch (e) { seen.push('refused'); } }"
            " return JSON.stringify(seen); }"
        )
        assert found(cloud, code) == ["refused"] * 5

    def test_a_ticket_of_one_agents_session_opens_no_other_agents(self, cloud):
        steal = (
            "const parse = JSON.parse; let ticket; const json = Request.prototype.json;"
            "Request.prototype.json = async function () { const v = await json.call(this); ticket = v.ticket; return v; };"
            "export default () => ticket;"
        )
        ticket = cloud.agent(steal).invoke(session="shared").text
        assert len(ticket) == 64
        use = (
            'import { env } from "cloudflare:workers"; export default async () => {'
            f" try {{ await env.PLATFORM.sessionGet('shared', '{ticket}', 'k'); return '\"read\"'; }}"
            " catch { return '\"refused\"'; } }"
        )
        assert found(cloud, use) == "refused"


class TestEgress:
    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1:PORT/local/calls", "http://localhost:PORT/", "http://[::1]:PORT/", "http://0.0.0.0:PORT/",
            "http://2130706433:PORT/", "http://0x7f.1:PORT/", "http://127.1:PORT/", "http://[::ffff:127.0.0.1]:PORT/",
            "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://10.0.0.1/",
            "http://192.168.1.1/", "http://172.16.0.1/", "http://100.64.0.1/", "http://metadata.google.internal/",
            "http://db/", "http://printer.local/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/",
            "http://[fe80::1]/", "http://LOCALHOST./", "http://a.localhost/", "http://agent/health", "http://vault/",
        ],
    )  # fmt: skip
    def test_private_loopback_and_metadata_addresses_are_refused(self, cloud, prober, url):
        assert prober.invoke(url.replace("PORT", str(cloud.port))).text.startswith("403 ")

    @pytest.mark.parametrize("scheme", ["ftp://example.com/", "file:///etc/passwd", "data:text/plain,hi"])
    def test_other_schemes_lead_nowhere(self, prober, scheme):
        text = prober.invoke(scheme).text
        assert text.startswith(("403 ", "error ")) or text == "200 hi"  # data: is the text itself

    def test_raw_sockets_lead_nowhere(self, cloud):
        code = (
            'import { connect } from "cloudflare:sockets"; import net from "node:net";'
            "export default async () => { const seen = [];"
            f" for (const hostname of ['127.0.0.1', 'localhost', 'example.com']) {{"
            f"  try {{ const s = connect({{ hostname, port: {cloud.port} }}); await s.opened; seen.push('open'); }}"
            "   catch { seen.push('refused'); } }"
            f" seen.push(await new Promise((done) => {{ const s = net.connect({cloud.port}, '127.0.0.1',"
            "   () => done('open')); s.on('error', () => done('refused')); setTimeout(() => done('refused'), 3000); }));"
            " return JSON.stringify(seen); }"
        )
        assert found(cloud, code) == ["refused"] * 4

    @pytest.mark.parametrize(
        ("host", "public"),
        [
            ("example.com", True), ("93.184.216.34", True), ("[2606:2800:220:1::]", True), ("172.32.0.1", True),
            ("example.com.", True), ("xn--bcher-kva.example.com", True), ("[2001:4860:4860::8888]", True),
            ("192.0.2.1", False), ("255.255.255.255", False), ("[2001:db8::1]", False), ("[2001::1]", False),
        ],
    )  # fmt: skip
    def test_public_addresses_are_told_from_others_by_their_form(self, host, public):
        import subprocess

        from django.conf import settings

        from runtimes.providers.cloudflare import SHIMS

        source = (
            (SHIMS / "platform" / "egress.mjs")
            .read_text()
            .replace('import { WorkerEntrypoint } from "cloudflare:workers";', "class WorkerEntrypoint {}")
        )
        script = f"{source}\nconsole.log(isPublicHost({json.dumps(host)}));"
        said = subprocess.run(
            [settings.NODE_BINARY, "--input-type=module", "-"], input=script, capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == str(public).lower()


@pytest.fixture(scope="module")
def prober(cloud):
    """An agent that fetches what it is told."""
    return cloud.agent(
        "export default async (request) => { try {"
        " const answer = await fetch(request.input.messages[0].content);"
        " return answer.status + ' ' + (await answer.text()).slice(0, 200); } catch (e) { return 'error ' + e; } }",
        timeoutSeconds=10,
    )


def answering(body, status=200):
    """Code that puts an answer of its own in the place of the one that the shim makes."""
    return (
        "const Real = Response; globalThis.Response = class extends Real { constructor(made, init) {"
        f" init?.status === 204 ? super(made, init) : super({json.dumps(body)}, {{ status: {status} }}); }} }};"
        "export default () => 'hi';"
    )


class TestHostility:
    def test_an_agent_that_forges_the_whole_answer_moves_only_its_own_claims(self, cloud):
        forged = '{"type":"final","usage":{"computeMs":0}}\n{"type":"end","usage":{"tokens":0}}\n'
        deployed = cloud.agent(answering(forged))
        with pytest.raises(RuntimeFailedError) as failure:
            deployed.invoke()
        assert failure.value.error_class == "AgentProtocol"
        assert failure.value.usage.tokens_estimated

    @pytest.mark.parametrize(
        "body", ["", "{}", "[]", "null", "nonsense", '{"type":"delta"}', '{"type":"delta","text":5}', "x" * 100]
    )
    def test_an_answer_that_is_none_of_the_protocol_is_a_failure(self, cloud, body):
        with pytest.raises(RuntimeFailedError) as failure:
            cloud.agent(answering(body)).invoke()
        assert failure.value.error_class in {"AgentProtocol", "Truncated"}

    @pytest.mark.parametrize("status", [200, 404, 500])
    def test_a_worker_that_breaks_down_whole_is_a_failure(self, cloud, status):
        with pytest.raises(RuntimeFailedError):
            cloud.agent(answering("oops", status)).invoke()

    def test_errors_of_every_kind_are_survived(self, cloud):
        for thrown in ("null", "undefined", "5", "'text'", "{ get message() { throw 1 } }", "Object.create(null)"):
            with pytest.raises(RuntimeFailedError) as failure:
                cloud.agent(f"export default () => {{ throw {thrown} }}").invoke()
            assert failure.value.error_class in {"AgentError", "AgentCrashed", "Truncated"}

    def test_a_hostile_agent_does_not_disturb_its_neighbours(self, cloud):
        neighbour = cloud.deployed(example("echo"))
        looping = cloud.agent("export default () => { for (;;); }", timeoutSeconds=1)
        import threading

        def loop():
            with pytest.raises(RuntimeFailedError):
                looping.invoke()

        caller = threading.Thread(target=loop)
        caller.start()
        until(lambda: cloud.invocations(looping.target) == 1)
        assert neighbour.invoke("still here").text == "still here"
        caller.join()

    def test_unhandled_rejections_after_the_answer_do_no_harm(self, cloud):
        code = "export default () => { Promise.reject(new Error('late')); return 'hi'; }"
        deployed = cloud.agent(code)
        assert [deployed.invoke().text for _ in range(3)] == ["hi"] * 3

    def test_the_same_bundle_makes_the_same_upload(self, cloud):
        from runtimes.providers.cloudflare import _upload
        from tests.runtimes.cloud import built, new_target

        bundles = [built(agent_zip("export default () => 'hi'")) for _ in range(2)]
        target = new_target(bundles[0])
        assert bundles[0].deployed_sha256 == bundles[1].deployed_sha256
        assert _upload(target, bundles[0], "x") == _upload(target, bundles[1], "x")

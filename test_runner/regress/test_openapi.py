"""The OpenAPI document is correct: a fuzzer that knows nothing else calls every operation, with inputs that the
document allows and with others, and compares each answer with it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.followed import follow_new
from fixtures.pageserver import new_id
from fixtures.tokens import Signer

OPERATIONS = ("get", "put", "post", "delete")
# Alarms that a client with full permissions can cause.
CAUSED = (r"WARN.*cannot follow the server", r"WARN.*WAL does not come", r"WARN.*[Ii]ndex part|WARN.*[Uu]pload",
          r"WARN.*detach")

CONFIG = """
request-timeout = 60
[generation]
database = "none"
# Those who may ask by a token, and what they may: tests of scopes are elsewhere.
with-security-parameters = {tokens}
[phases.coverage]
generate-duplicate-query-parameters = true
[checks.positive_data_acceptance]
# What a schema cannot say: that a moment is one of the calendar, an LSN of the history, a bucket there.
expected-statuses = ["2xx", "400", "401", "403", "404", "406", "408", "409", "412", "503"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "412", "413", "415"]
[dictionaries.tenants]
values = {tenants}
[dictionaries.timelines]
values = {timelines}
[dictionaries.layers]
values = {layers}
[dictionaries.keys]
values = {keys}
[dictionaries.lsns]
values = {lsns}
[dictionaries.victims]
values = {victims}
[parameters]
tenant_shard_id = {{ dictionary = "tenants", probability = 0.8 }}
timeline_id = {{ dictionary = "timelines", probability = 0.8 }}
layer_file_name = {{ dictionary = "layers", probability = 0.5 }}
"query.key" = {{ dictionary = "keys", probability = 0.5 }}
"query.lsn" = {{ dictionary = "lsns", probability = 0.5 }}
"query.other" = {{ dictionary = "timelines", probability = 0.5 }}
# What would be the end of the cluster that all others are about.
[[operations]]
include-path = ["/v1/tenant/{{tenant_shard_id}}", "/v1/tenant/{{tenant_shard_id}}/timeline/{{timeline_id}}"]
include-method = "DELETE"
parameters = {{ tenant_shard_id = {{ dictionary = "victims", probability = 0.5 }} }}
[[operations]]
include-path = "/v1/tenant/{{tenant_shard_id}}/location_config"
parameters = {{ tenant_shard_id = {{ dictionary = "victims", probability = 0.5 }} }}
"""


def signed(tokens: bool, module_dir) -> tuple[Signer, dict]:
    signer = Signer()
    if not tokens:
        return signer, {}
    place = module_dir / "key.pem"
    signer.write_public(place)
    return signer, {"http_auth_type": "JWT", "auth_validation_public_key_path": str(place)}


@pytest.fixture(scope="module", params=[False, True], ids=["trust", "jwt"])
def described(request, make_postgres, make_pageserver, module_dir):
    """A server with a cluster and a branch of it, with and without tokens; and its document."""
    name = "described-jwt" if request.param else "described"
    signer, settings = signed(request.param, module_dir)
    followed = follow_new(make_postgres, make_pageserver, name, settings={"http_request_timeout": "5s"})
    server = followed.pageserver
    server.stop()
    server.configure(**settings)
    server.token = server.secret(signer.admin()) if request.param else None
    server.start()
    followed.catch_up()
    followed.tokens = request.param
    followed.branch = followed.timeline.branch()
    followed.document = json.loads(server.http.text("/v1/openapi.json"))
    return followed


def has_pattern(document: dict, schema) -> bool:
    """Whether a schema, or one that it refers to, restricts texts by a pattern."""
    text = json.dumps(schema)
    referred = [document["components"]["schemas"][name] for name in re.findall(r'"#/components/schemas/(\w+)"', text)]
    return "pattern" in text or any("pattern" in one for one in referred)


def operations(document: dict):
    for path, item in document["paths"].items():
        for method in OPERATIONS:
            if method in item:
                yield method.upper(), path, item[method]


def test_errors_ids_and_security_are_declared(described):
    document, found = described.document, 0
    for method, path, operation in operations(document):
        found += 1
        where, statuses = f"{method} {path}", set(operation["responses"])
        assert "400" in statuses, where
        assert ("404" in statuses) >= ("{" in path), where
        is_open = path in ("/v1/status", "/metrics", "/v1/openapi.json", "/swagger.yml", "/v1/doc")
        asks = operation.get("security", document.get("security", []))
        if described.tokens and not is_open:
            scopes = {scope for way in asks for scope in way["bearer"]}
            assert "pageserverapi" in scopes and {"401", "403"} <= statuses, where
            not_for_users = where in ("DELETE /v1/tenant/{tenant_shard_id}", "PUT /v1/tenant/{tenant_shard_id}/quota",
                                      "PUT /v1/tenant/{tenant_shard_id}/location_config",
                                      "GET /v1/tenant/{tenant_shard_id}/move", "PUT /v1/tenant/{tenant_shard_id}/move")
            assert ("tenant" in scopes) == ("{tenant_shard_id}" in path and not not_for_users), where
        else:
            # Without tokens, requests for other names than the server's are refused.
            assert not asks and "401" not in statuses and ("403" in statuses) == (not described.tokens), where
        for parameter in operation.get("parameters", []):
            if parameter["name"].endswith("_id") or parameter["name"] in ("lsn", "at_lsn", "other", "key"):
                assert has_pattern(document, parameter["schema"]), f"{where} {parameter['name']}"
    assert found >= 33
    schemes = document.get("components", {}).get("securitySchemes", {})
    assert ("bearer" in schemes) == described.tokens
    for name, schema in document["components"]["schemas"].items():
        for member, about in schema.get("properties", {}).items():
            if re.search(r"(tenant|timeline)_id$|_lsn$|^lsn$", member):
                assert has_pattern(document, about), f"{name}.{member}"


def test_every_operation_answers_as_the_document_says(described, module_dir, request):
    server, timeline = described.pageserver, described.timeline
    http = server.http
    layers = [layer["layer_file_name"] for layer in http.get(f"{timeline.path}/layer")["historic_layers"]]
    victims = [new_id() for _ in range(5)]
    for victim in victims:
        http.put(f"/v1/tenant/{victim}/location_config", {"mode": "AttachedSingle"})
    known = {
        "tokens": json.dumps(described.tokens), "tenants": [timeline.tenant],
        "timelines": [timeline.id, described.branch.id], "layers": layers[:20], "victims": victims,
        "keys": [http.get(f"{timeline.path}/keyspace")["keys"][0][0]],
        "lsns": [timeline.last_record_lsn(), timeline.info()["min_readable_lsn"]],
    }
    config = module_dir / "schemathesis.toml"
    text = {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}
    if described.tokens:
        config.write_text(CONFIG.format(**text) + f'[auth.openapi.bearer]\nbearer = "{server.token}"\n')
    else:
        config.write_text(CONFIG.format(**text))
    server.allow(*CAUSED)
    examples = request.config.getoption("--api-examples")
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config), "run",
        f"http://127.0.0.1:{server.http_port}/v1/openapi.json", "--max-examples", str(examples),
        "--phases", "examples,coverage,fuzzing", "--checks", "all", "--continue-on-failure", "--no-color",
        *([] if examples > 20 else ["--generation-deterministic"]),
    ]
    # The document itself is public, so it is not requested with the header of a test.
    done = subprocess.run(command, cwd=module_dir, capture_output=True, text=True, timeout=3600)
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    tested = re.search(r"(\d+) selected / (\d+) total", done.stdout)
    assert tested and tested[1] == tested[2] and int(tested[1]) >= 33, "not all operations were called"
    assert timeline.info()["state"] == "Active", "the cluster is still served"

"""The Helm chart: what helm and Kubernetes' schemas say of it, and that servers that are started as its pods would be
make up a fleet."""

import os
import re
import subprocess
import time
import tomllib

import kubernetes_validate
import pytest

from fixtures.fleet import EXPECTED, Fleet, Writer
from fixtures.followed import Followed
from fixtures.helm import KUBERNETES, Rendered, helm, mounted
from fixtures.pageserver import POSTGRES_IS_GONE
from fixtures.programs import REPOSITORY, program
from fixtures.s3 import KEY, SECRET, free_ports
from fixtures.tokens import Signer, write_certificate
from fixtures.units import Installed, replaced

# helm has to be built first, which takes minutes.
pytestmark = pytest.mark.daily

GUARDED = {
    "bucket": {"url": "s3://pages/fleet"}, "auth": {"publicKeysSecret": "keys"}, "tls": {"secret": "certificate"},
    "standbys": {"tokenSecret": "token"},
}
VALUES = {
    "two": GUARDED,
    "three": {**GUARDED, "replicas": 3, "antiAffinity": "soft", "serviceMonitor": {"enabled": True},
              "perServerService": {"enabled": True}, "nodeSelector": {"disk": "nvme"}, "priorityClassName": "high",
              "tolerations": [{"key": "pages", "operator": "Exists"}], "podAnnotations": {"a": "b"},
              "imagePullSecrets": [{"name": "registry"}], "persistence": {"storageClass": "fast", "size": "1Ti"},
              "bucket": {**GUARDED["bucket"], "region": "eu-central-1", "secret": "bucket"}},
    "one, for trying": {"replicas": 1, "bucket": {"url": "gs://pages/one"}, "auth": {"enabled": False,
                        "allowInsecure": True}, "tls": {"enabled": False}, "persistence": {"enabled": False},
                        "settings": {"disk_budget": 1 << 34, "page_cache_size": 1024, "audit_log": False}},
    "tokens in a mesh": {**GUARDED, "tls": {"enabled": False}, "antiAffinity": "none",
                         "auth": {"publicKeysSecret": "keys", "allowPlaintextTokens": True},
                         "serviceAccount": {"create": False, "name": "mine"}},
}
REFUSED = {
    "bucket.url is needed": {**GUARDED, "bucket": {}},
    "auth.allowInsecure": {**GUARDED, "auth": {"enabled": False}},
    "auth.allowPlaintextTokens": {**GUARDED, "tls": {"enabled": False}},
    "auth.publicKeysSecret is needed": {**GUARDED, "auth": {}},
    "tls.secret is needed": {**GUARDED, "tls": {}},
    "standbys.tokenSecret is needed": {**GUARDED, "standbys": {}},
    "settings.listen_pg_addr: other values": {**GUARDED, "settings": {"listen_pg_addr": "127.0.0.1:1"}},
    "replicas": {**GUARDED, "replicas": 0},
    "replica": {**GUARDED, "replica": 2},
    "antiAffinity": {**GUARDED, "antiAffinity": "firm"},
}


@pytest.fixture
def rendered(request, work_dir) -> Rendered:
    made = Rendered(VALUES[request.param], work_dir)
    assert made.error is None, made.error
    return made


each = pytest.mark.parametrize("rendered", VALUES, indirect=True)


@each
def test_helm_and_kubernetes_take_it(rendered):
    done = helm("lint", "--strict", rendered.arguments[1], "--values", rendered.arguments[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    for one in rendered.manifests:
        if not one["apiVersion"].startswith("monitoring."):
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered.manifests]
    assert len(set(names)) == len(names)


@each
def test_names_and_ports_agree(rendered):
    stateful = rendered.one("StatefulSet")["spec"]
    labels, pod = stateful["template"]["metadata"]["labels"], stateful["template"]["spec"]
    services = {one["metadata"]["name"]: one for one in rendered.all("Service")}
    assert services[stateful["serviceName"]]["spec"]["clusterIP"] == "None"
    ports = {one["name"]: one["containerPort"] for one in pod["containers"][0]["ports"]}
    settings = tomllib.loads(rendered.settings())
    assert settings["listen_pg_addr"] == f"0.0.0.0:{ports['pages']}"
    assert settings["listen_http_addr"] == f"0.0.0.0:{ports['http']}"
    for service in services.values():
        selector = dict(service["spec"]["selector"])
        assert selector.pop("statefulset.kubernetes.io/pod-name", rendered.names()[0]) in rendered.names()
        assert selector.items() <= labels.items()
        assert all(one["port"] == ports[one["targetPort"]] for one in service["spec"]["ports"])
    for selecting in [stateful, *(one["spec"] for one in rendered.all("PodDisruptionBudget"))]:
        assert selecting["selector"]["matchLabels"].items() <= labels.items()
    for one in rendered.all("ServiceMonitor"):
        wanted = one["spec"]["selector"]["matchLabels"].items()
        chosen = [name for name, service in services.items() if wanted <= service["metadata"]["labels"].items()]
        assert chosen == [stateful["serviceName"]], "each server is to be scraped once"
    # Other pods are not the servers.
    for job in rendered.all("CronJob"):
        others = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
        assert not stateful["selector"]["matchLabels"].items() <= others.items()
    data = rendered.one("ConfigMap")["data"]
    claimed = {one["metadata"]["name"] for one in stateful.get("volumeClaimTemplates", [])}
    for spec in rendered.pods():
        volumes = {one["name"]: one for one in spec.get("volumes", [])}
        (container,) = spec["containers"]
        assert {one["name"] for one in container.get("volumeMounts", [])} - claimed == set(volumes)
        items = [item for one in volumes.values() for item in one.get("configMap", {}).get("items", [])]
        assert all(item["key"] in data for item in items)
        assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
        for one in container.get("env", []):
            if one["name"] == "PAGECTL_SERVER":
                hosts = re.findall(r"//([^:]+):9898", one["value"])
                assert hosts == [f"{name}.{rendered.domain()}" for name in rendered.names()]


@pytest.mark.parametrize("why", REFUSED)
def test_values_that_cannot_work_are_refused(why, work_dir):
    error = Rendered(REFUSED[why], work_dir).error
    assert error and why in error, error


@each
def test_the_server_takes_the_settings(rendered, work_dir):
    """All of them, before it looks for anything that they name."""
    (work_dir / "pageserver.toml").write_text(rendered.settings())
    env = {**os.environ, **rendered.environment(rendered.names()[0])}
    done = subprocess.run([program("pageserver"), "--workdir", work_dir, "--print-config"], env=env, text=True,
                          capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    # What is as by default is said in a comment.
    used = {line.lstrip("# ") for line in done.stdout.splitlines()}
    wanted = rendered.settings().splitlines()[1:]
    assert set(wanted) <= used and f'server_id = "{rendered.names()[0]}"' in used, set(wanted) - used
    assert f'{rendered.names()[0]}.{rendered.domain()}:9898/"' in done.stdout


class Pod(Installed):
    """A server as a container runs it: as another user, with a directory of its group, and settings that it cannot
    write."""

    def configure(self, **settings):
        assert not settings, "the file is the chart's"
        (self.workdir / "pageserver.toml").write_text(self.text)
        # As of a new volume with `fsGroup`.
        (self.workdir / "lost+found").mkdir(exist_ok=True, mode=0o700)
        os.chown(self.workdir, 0, 10001)
        self.workdir.chmod(0o2770)


def start_pods(rendered: Rendered, store: dict, signer: Signer, place, pageservers) -> list[Pod]:
    """All servers, and the names by which they know each other, replaced by addresses on loopback."""
    secrets = place / "etc"
    certificate, key, trusting = write_certificate(place)
    signer.write_public(place / "first.pem")
    credentials = f'access_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\n'
    mounted(secrets / "bucket", {"bucket.toml": credentials.encode()})
    mounted(secrets / "keys", {"first.pem": (place / "first.pem").read_bytes()})
    mounted(secrets / "tls", {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes(),
                              "ca.crt": certificate.read_bytes()})
    text = rendered.settings()
    (entrypoint,) = re.findall(r'^ENTRYPOINT \["/usr/local/bin/(pageserver)", "--workdir", "/data"\]$',
                               (REPOSITORY / "docs/deploy/Containerfile").read_text(), re.MULTILINE)
    ports, pods = free_ports(2 * len(rendered.names())), []
    for name in rendered.names():
        own = replaced(text, {"/etc/pageserver": str(secrets), "0.0.0.0:64000": f"127.0.0.1:{ports.pop()}",
                              "0.0.0.0:9898": f"127.0.0.1:{ports.pop()}"})
        as_other = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs"]
        command = [*as_other, str(program(entrypoint)), "--workdir", str(place / name)]
        env = {**rendered.environment(name), "PAGESERVER_LOG_FORMAT": "human"}
        pods.append(Pod(program("pageserver"), place / name, own, command, env).allow(*EXPECTED))
        pods[-1].token, pods[-1].tls = signer.admin(), trusting
        pageservers.append(pods[-1])
        pods[-1].start()
    return pods


@pytest.mark.slow
def test_its_servers_make_up_a_fleet(make_store, make_postgres, pageservers, pagectl_binary, work_dir):
    if os.getuid() != 0:
        pytest.skip("only root runs servers as another user")
    store, signer = make_store("weed").settings("fleet"), Signer()
    values = {**GUARDED, "bucket": {"url": store["remote_storage"], "region": "us-east-1", "secret": "bucket",
                                    "endpoint": store["remote_storage_endpoint"], "allowHttp": True}}
    rendered = Rendered(values, work_dir)
    first, second = start_pods(rendered, store, signer, work_dir, pageservers)
    # The probe, as the kubelet asks: by address.
    probe = rendered.one("StatefulSet")["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]
    assert probe["scheme"] == "HTTPS"
    first.http.get(probe["path"])
    postgres = make_postgres("charted", max_replication_slots=10).start()
    # Pods are another user than the server's.
    postgres.sockets.chmod(0o755)
    fleet = Fleet(Followed(postgres, first, first.follow(postgres)), [first, second], "")
    fleet.tenant = fleet.followed.timeline.tenant
    # What the CronJob runs.
    (work_dir / "standbys.sh").write_text(rendered.one("ConfigMap")["data"]["standbys.sh"])
    env = {**os.environ, "PATH": f"{pagectl_binary.parent}:{os.environ['PATH']}", "PAGECTL_TOKEN": signer.admin(),
           "PAGECTL_SERVER": ",".join(f"https://localhost:{pod.http_port}" for pod in (first, second)),
           "PAGECTL_CA_FILE": str(work_dir / "etc" / "tls" / "ca.crt")}

    def run_job() -> subprocess.CompletedProcess:
        command = ["/bin/sh", work_dir / "standbys.sh"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    assert run_job().returncode == 0 and fleet.state(second) == "Standby"
    again = run_job()
    assert again.returncode == 0 and again.stdout == "", again
    fleet.wait_for_standby(second, postgres, fleet.followed.timeline)
    try:
        postgres.sql("ALTER SYSTEM SET synchronous_standby_names = 'pageserver'")
        postgres.sql("SELECT pg_reload_conf()")
        with Writer(postgres, "acknowledged") as writer:
            writer.wait_for_rows(10)
            killed = time.monotonic()
            first.kill()
            fleet.wait_for_owner(second)
            writer.acknowledged_after(killed)
        writer.check()
        # A pod that comes back is made the standby of the new owner.
        first.start()
        job = run_job()
        assert job.returncode == 0 and fleet.state(first) == "Standby", job
    finally:
        for pod in (first, second):
            if pod.is_running():
                pod.allow(POSTGRES_IS_GONE).stop()
        postgres.stop("immediate")

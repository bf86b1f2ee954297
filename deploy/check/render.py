#!/usr/bin/env python3
"""Render the Helm chart as `helm template` does, and keep the plain manifests in deploy/kubernetes equal to it.

    render.py            lint the chart, render it, and compare deploy/kubernetes with it
    render.py --write    write deploy/kubernetes instead

Refuses fields that Kubernetes does not know: a misspelt one would be ignored. Refuses a Deployment or Job that does not
read the text of `config`, or reads it from a ConfigMap that Helm makes too late. Prints each rendered object as one
line of JSON, for validate.mjs. Needs the packages helm-python-sdk, which has Helm's own code, and kubernetes, the
official client.
"""

import json
import pathlib
import re
import sys

import helm_python as helm
import yaml
from kubernetes.client import models

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE.parent / "helm" / "tickr"
HEADER = "# Made from deploy/helm/tickr by `make check-deploy ARGS=--write`. Change the chart, not this file.\n"
SCALED = {
    "name": "mail",
    "queues": ["mail", "reports"],
    "workers": 32,
    "replicas": 1,
    "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
    "autoscaling": {"enabled": True, "min": 0, "max": 20, "pollingSeconds": 15, "cooldownSeconds": 300},
}
# The manifests that are kept as files, and other values, which are only validated.
VARIANTS = [
    ("tickr.yaml", {}),
    ("tickr-keda.yaml", {"runners": [SCALED]}),
    (None, {"config": "table_prefix = \"shop_\"\n", "migrate": {"secret": "migrations"}}),
    (None, {
        "runners": [SCALED, SCALED | {"name": "default", "queues": ["default"], "autoscaling": {"enabled": False}}],
        "config": "[smtp]\nhost = \"mail\"\n",
        "env": {"TICKR_LOG": "debug"},
        "image": {"tag": "9", "pullSecrets": [{"name": "registry"}]},
        "migrate": {"enabled": False},
        "networkPolicy": {"enabled": True},
        "podAnnotations": {"prometheus.io/scrape": "true"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "jobs", "operator": "Exists"}],
        "service": {"annotations": {"a": "b"}},
    }),
]


def rendered(values):
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="tickr", namespace="jobs")
    return "---\n".join(files[name].strip() + "\n" for name in sorted(files) if files[name].strip())


def unknown_fields(value, type_name, path):
    """Return the paths of fields that this type of Kubernetes does not have."""
    inner = re.fullmatch(r"(?:List|list)\[(.*)\]", type_name)
    if inner:
        return [found for at, one in enumerate(value) for found in unknown_fields(one, inner[1], f"{path}[{at}]")]
    model = getattr(models, type_name, None)
    if model is None or not isinstance(value, dict):
        return []
    types = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
    unknown = [f"{path}.{name}" for name in value if name not in types]
    known = ((name, one) for name, one in value.items() if name in types)
    return unknown + [found for name, one in known for found in unknown_fields(one, types[name], f"{path}.{name}")]


def settings_of(thing, things):
    """Return the ConfigMap of the file that TICKR_CONFIG names, and the text of the file."""
    pod = thing["spec"]["template"]["spec"]
    container = pod["containers"][0]
    file = next(one["value"] for one in container["env"] if one["name"] == "TICKR_CONFIG")
    folder, name = file.rsplit("/", 1)
    mount = next(one["name"] for one in container["volumeMounts"] if one["mountPath"] == folder)
    volume = next(one["configMap"]["name"] for one in pod["volumes"] if one["name"] == mount)
    maps = (one for one in things if one["kind"] == "ConfigMap")
    source = next(one for one in maps if one["metadata"]["name"] == volume)
    return source, source["data"][name]


def when(thing):
    """Return the hooks of Helm that make an object, and its place among their objects."""
    annotations = thing["metadata"].get("annotations", {})
    return annotations.get("helm.sh/hook"), int(annotations.get("helm.sh/hook-weight", 0))


def wrong_settings(things, text):
    """Return the processes that do not read this configuration."""
    wrong = []
    for thing in things:
        if thing["kind"] not in ("Deployment", "Job"):
            continue
        try:
            source, found = settings_of(thing, things)
        except (KeyError, StopIteration):
            source, found = None, None
        (hooks, place), (source_hooks, source_place) = when(thing), when(source or thing)
        # Helm makes the objects that are no hooks all at once.
        if found != text or hooks != source_hooks or (hooks and source_place >= place):
            wrong.append(f"{thing['kind']} {thing['metadata']['name']}")
    return wrong


def main():
    findings = helm.lint(str(CHART))
    print(f"Helm {helm.helm_sdk_version()}", file=sys.stderr)
    stale, unknown, unread = [], [], []
    for name, values in VARIANTS:
        text = rendered(values)
        things = [thing for thing in yaml.safe_load_all(text) if thing]
        unread += wrong_settings(things, values.get("config", ""))
        for thing in things:
            print(json.dumps(thing))
            if not thing["apiVersion"].startswith("keda.sh/"):
                version = thing["apiVersion"].split("/")[-1].capitalize()
                unknown += unknown_fields(thing, version + thing["kind"], thing["kind"])
        if name is None:
            continue
        file, text = HERE.parent / "kubernetes" / name, HEADER + text
        if "--write" in sys.argv:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            stale.append(name)
    if findings["errors"] or unknown:
        sys.exit(f"helm lint: {findings['errors']}; fields that Kubernetes does not know: {sorted(set(unknown))}")
    if unread:
        sys.exit(f"these do not read the text of `config`, or too early: {', '.join(unread)}")
    if stale:
        sys.exit(f"deploy/kubernetes is not what the chart renders: {', '.join(stale)}; run make check-deploy ARGS=--write")


main()

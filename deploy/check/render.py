#!/usr/bin/env python3
"""Render the Helm chart as `helm template` does, and keep the plain manifests in deploy/kubernetes equal to it.

    render.py            lint the chart, render it, and compare deploy/kubernetes with it
    render.py --write    write deploy/kubernetes instead

Refuses fields that Kubernetes does not know: a misspelt one would be ignored. Prints each rendered object as one line of
JSON, for validate.mjs. Needs the packages helm-python-sdk, which has Helm's own code, and kubernetes, the official client.
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
VARIANTS = {
    "tickr.yaml": {},
    "tickr-keda.yaml": {"runners": [SCALED]},
    None: {
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
    },
}


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


def main():
    findings = helm.lint(str(CHART))
    print(f"Helm {helm.helm_sdk_version()}", file=sys.stderr)
    stale, unknown = [], []
    for name, values in VARIANTS.items():
        text = rendered(values)
        for thing in yaml.safe_load_all(text):
            if not thing:
                continue
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
    if stale:
        sys.exit(f"deploy/kubernetes is not what the chart renders: {', '.join(stale)}; run make check-deploy ARGS=--write")


main()

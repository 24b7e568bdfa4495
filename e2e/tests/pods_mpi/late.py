"""Pushes an image to a registry that the node must pull: a copy of another image with one more layer, deleted from the node.

usage: late.py FROM TO. Runs inside the node, where a plain registry listens at the host of TO.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time


def ctr(*args, **more):
    command = ["ctr", "-n", "k8s.io", *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)
    if done.returncode:
        sys.exit(f"{command}: {done.stdout.decode()}")
    return done.stdout


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def content(what):
    return json.loads(ctr("content", "get", what))


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


source, target = sys.argv[1:]
found = [line.split() for line in ctr("images", "ls", f"name=={source}").decode().splitlines()]
manifest = content(next(word for line in found for word in line if word.startswith("sha256:")))
if "manifests" in manifest:
    manifest = content(manifest["manifests"][0]["digest"])
config = content(manifest["config"]["digest"])

# Unique and incompressible.
layer = tar({"opt/late": os.urandom(8 << 20)})
config["rootfs"]["diff_ids"].append(digest(layer))
config.pop("history", None)
blobs = [layer, json.dumps(config).encode()]
kind = "application/vnd.oci.image."
describe = lambda what, data: {"mediaType": kind + what, "digest": digest(data), "size": len(data)}
layers = [{**old, "mediaType": kind + "layer.v1.tar"} for old in manifest["layers"]]
image = {
    "schemaVersion": 2,
    "mediaType": kind + "manifest.v1+json",
    "config": describe("config.v1+json", blobs[1]),
    "layers": [*layers, describe("layer.v1.tar", layer)],
}
blobs.append(json.dumps(image).encode())
# Otherwise the kubelet would find it on the node under its own name.
local = target.partition("/")[2]
named = {**describe("manifest.v1+json", blobs[2]), "annotations": {"io.containerd.image.name": local}}
files = {"blobs/sha256/" + digest(data).split(":")[1]: data for data in blobs}
files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
ctr("images", "import", "--no-unpack", "-", input=tar(files))
ctr("images", "push", "--plain-http", target, local)
# containerd gives an imported image a second name, and keeps every image that has a name.
second = digest(blobs[1])
end = time.monotonic() + 60
while second not in ctr("images", "ls", "-q").decode().split():
    if time.monotonic() > end:
        sys.exit(f"no image {second}")
    time.sleep(0.1)
ctr("images", "rm", "--sync", local, second)
print(digest(layer))

#!/usr/bin/env bash
# Train as a JobSet on a Kubernetes cluster. Fills in jobset_tpu.yaml or jobset_gpu.yaml.
#
#   launch/jobset.sh tpu|gpu create CONFIG WORKDIR [train.py's flags]
#   launch/jobset.sh tpu|gpu show CONFIG WORKDIR [...]      print what `create` would apply
#   launch/jobset.sh tpu|gpu log | delete
set -euo pipefail

NAME=${NAME:-convs2s}
IMAGE=${IMAGE:-} # built from launch/Dockerfile, in a registry that the cluster can read
CLAIM=${CLAIM:-shared}         # a PersistentVolumeClaim that all pods mount (ReadWriteMany), at /shared
PODS=${PODS:-4}                # machines; for TPUs, machines per slice
CHIPS=${CHIPS:-4}              # TPU chips or GPUs per machine
SLICES=${SLICES:-1}            # TPUs only
ACCELERATOR=${ACCELERATOR:-tpu-v5-lite-podslice}
TOPOLOGY=${TOPOLOGY:-4x4}
RESTARTS=${RESTARTS:-100}
HERE=$(dirname "${BASH_SOURCE[0]}")

kind=${1:-}
action=${2:-}
if [[ $kind != tpu && $kind != gpu ]]; then
  echo "unknown kind of devices '$kind'; use tpu or gpu" >&2
  exit 2
fi

filled() {
  local config=${1:?$action CONFIG WORKDIR} workdir=${2:?$action CONFIG WORKDIR} flag name text
  shift 2
  : "${IMAGE:?set the image, as in IMAGE=registry.example/convs2s:1}"
  text=$(<"$HERE/jobset_$kind.yaml")
  for name in NAME IMAGE CLAIM PODS CHIPS SLICES ACCELERATOR TOPOLOGY RESTARTS; do
    text=${text//__${name}__/"${!name}"}
  done
  text=${text//__CONFIG__/"${config//\'/\'\'}"} # within single quotes
  text=${text//__WORKDIR__/"${workdir//\'/\'\'}"}
  printf '%s\n' "$text" | while IFS= read -r line; do
    if [[ $line != *'- __FLAGS__' ]]; then
      printf '%s\n' "$line"
      continue
    fi
    for flag in "$@"; do # quoted as a YAML string in single quotes
      printf "%s- '%s'\n" "${line%%- *}" "${flag//\'/\'\'}"
    done
  done
}

case $action in
  show) filled "${@:3}" ;;
  create)
    text=$(filled "${@:3}")
    kubectl apply -f - <<<"$text"
    ;;
  log) kubectl logs --follow "job/$NAME-workers-0" ;;
  delete) kubectl delete jobset "$NAME" ;;
  *)
    echo "unknown action '$action'; use create, show, log or delete" >&2
    exit 2
    ;;
esac

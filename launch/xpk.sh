#!/usr/bin/env bash
# Train on TPU slices of a GKE cluster created with xpk:
#
#   launch/xpk.sh create CONFIG WORKDIR [train.py's flags]
#   launch/xpk.sh list | delete
set -euo pipefail

CLUSTER=${CLUSTER:?set the cluster, as in CLUSTER=my-cluster}
NAME=${NAME:-convs2s}
IMAGE=${IMAGE:-} # built from launch/Dockerfile, in a registry that the cluster can read
TPU=${TPU:-v5litepod-16}
SLICES=${SLICES:-1}
RESTARTS=${RESTARTS:-100}
GRACE=${GRACE:-120} # seconds from SIGTERM to SIGKILL
AGAIN=75

create() {
  local config=${1:?create CONFIG WORKDIR} workdir=${2:?create CONFIG WORKDIR} command
  shift 2
  : "${IMAGE:?set the image, as in IMAGE=europe-docker.pkg.dev/PROJECT/REPOSITORY/convs2s:1}"
  printf -v command ' %q' --config="$config" --workdir="$workdir" --distributed "$@"
  # RETRIES=0: the JobSet restarts all pods together
  xpk workload create --cluster="$CLUSTER" --workload="$NAME" --tpu-type="$TPU" --num-slices="$SLICES" \
    --docker-image="$IMAGE" --max-restarts="$RESTARTS" --restart-on-exit-codes="$AGAIN" \
    --termination-grace-period-seconds="$GRACE" \
    --env=RETRIES=0 --env=JAX_COMPILATION_CACHE_DIR="$workdir/cache/compiled" \
    --command="launch/run.sh python train.py$command"
}

action=${1:-}
case $action in
  create) "$@" ;;
  list) xpk workload list --cluster="$CLUSTER" ;;
  delete) xpk workload delete --cluster="$CLUSTER" --workload="$NAME" --force ;;
  *)
    echo "unknown action '$action'; use create, list or delete" >&2
    exit 2
    ;;
esac

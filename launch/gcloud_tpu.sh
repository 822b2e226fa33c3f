#!/usr/bin/env bash
# Train on a TPU slice with gcloud alone. In this order:
#
#   launch/gcloud_tpu.sh create     request the slice, and wait until it is ready
#   launch/gcloud_tpu.sh install    copy the last commit of this checkout to all workers, and install it
#   launch/gcloud_tpu.sh run CONFIG WORKDIR [train.py's flags]
#   launch/gcloud_tpu.sh log        show the end of worker 0's log, and whether training is running on each worker
#   launch/gcloud_tpu.sh stop       save and exit; `run` continues
#   launch/gcloud_tpu.sh delete     release the slice
set -euo pipefail

NAME=${NAME:-convs2s}
ZONE=${ZONE:?set a zone, as in ZONE=us-west4-a}
ACCELERATOR=${ACCELERATOR:-v5litepod-16}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite} # for the TPU version: https://cloud.google.com/tpu/docs/runtimes
CAPACITY=${CAPACITY:---spot}            # or --reserved, or --on-demand for neither
PYTHON=${PYTHON:-python3}               # on the workers, 3.11 or later; if it is older, uv installs Python 3.12
WAIT=${WAIT:-30}                        # seconds between two checks of the request
METADATA=${METADATA-http://metadata.google.internal/computeMetadata/v1/instance}
FOLDER=convs2s_jax # in the home folder of each worker

tpus() { gcloud compute tpus "$@" --zone="$ZONE"; }

on_workers() { # run a command on all workers at once
  tpus tpu-vm ssh "$NAME" --worker=all --command="$1"
}

create() {
  local options=() state=''
  if [[ $CAPACITY != --on-demand ]]; then
    options=("$CAPACITY")
  fi
  tpus queued-resources create "$NAME" --node-id="$NAME" --accelerator-type="$ACCELERATOR" \
    --runtime-version="$RUNTIME" "${options[@]}"
  while [[ $state != ACTIVE ]]; do
    state=$(tpus queued-resources describe "$NAME" --format='value(state.state)')
    case $state in
      FAILED | SUSPENDING | SUSPENDED)
        echo "the request is $state; delete it and create it again" >&2
        exit 1
        ;;
      ACTIVE) ;;
      *) sleep "$WAIT" ;;
    esac
  done
}

install() {
  local archive
  archive=$(mktemp --suffix=.tar.gz)
  git archive --format=tar.gz --output="$archive" HEAD
  tpus tpu-vm scp "$archive" "$NAME:$FOLDER.tar.gz" --worker=all
  rm -f "$archive"
  on_workers "mkdir -p $FOLDER && tar -xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER &&
    if [ -x .venv/bin/python ]; then :
    elif $PYTHON -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then $PYTHON -m venv .venv
    else $PYTHON -m pip install --quiet --user uv && $PYTHON -m uv venv --quiet --seed --python 3.12 .venv; fi &&
    .venv/bin/python -m pip install --quiet '.[tpu]'"
}

run() {
  local config=${1:?run CONFIG WORKDIR} workdir=${2:?run CONFIG WORKDIR} flags
  shift 2
  printf -v flags ' %q' --config="$config" --workdir="$workdir" --distributed "$@"
  # the process outlives the connection; a machine polls its own metadata and saves before it is preempted
  on_workers "if kill -0 \$(cat $FOLDER.pid) 2>/dev/null; then
      echo 'training is already running here; stop it first' >&2; exit 1
    fi
    cd $FOLDER && export METADATA=$METADATA &&
    export JAX_COMPILATION_CACHE_DIR=\${JAX_COMPILATION_CACHE_DIR:-$(printf '%q' "$workdir")/cache/compiled} &&
    { nohup setsid launch/run.sh .venv/bin/python train.py$flags >>../$FOLDER.log 2>&1 </dev/null &
    echo \$! >../$FOLDER.pid; }"
}

log() {
  tpus tpu-vm ssh "$NAME" --worker=0 --command="tail -n 40 $FOLDER.log"
  on_workers "if kill -0 \$(cat $FOLDER.pid) 2>/dev/null; then echo running; else echo exited; fi"
}

stop() { on_workers "kill -TERM \$(cat $FOLDER.pid)"; }

delete() { tpus queued-resources delete "$NAME" --force --quiet; }

action=${1:-}
case $action in
  create | install | run | log | stop | delete) "$@" ;;
  *)
    echo "unknown action '$action'; use create, install, run, log, stop or delete" >&2
    exit 2
    ;;
esac

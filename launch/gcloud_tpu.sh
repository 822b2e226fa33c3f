#!/usr/bin/env bash
# A training on a TPU slice, by gcloud alone. In this order:
#
#   launch/gcloud_tpu.sh create     request the slice, and wait until it is there
#   launch/gcloud_tpu.sh install    copy the last commit of this checkout to all workers, and install it there
#   launch/gcloud_tpu.sh run CONFIG WORKDIR [train.py's flags]
#   launch/gcloud_tpu.sh log        the end of the log of worker 0, and what each worker's training does
#   launch/gcloud_tpu.sh stop       save and end; `run` continues
#   launch/gcloud_tpu.sh delete     give the slice back
set -euo pipefail

NAME=${NAME:-convs2s}
ZONE=${ZONE:?name a zone, as in ZONE=us-west4-a}
ACCELERATOR=${ACCELERATOR:-v5litepod-16}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite} # of the TPU version: https://cloud.google.com/tpu/docs/runtimes
CAPACITY=${CAPACITY:---spot}            # or --reserved, or --on-demand for neither
PYTHON=${PYTHON:-python3}               # of the workers, 3.11 or newer; where it is older, uv brings Python 3.12
WAIT=${WAIT:-30}                        # seconds between two looks at the request
METADATA=${METADATA-http://metadata.google.internal/computeMetadata/v1/instance}
FOLDER=convs2s_jax # in the home folder of each worker

tpus() { gcloud compute tpus "$@" --zone="$ZONE"; }

on_workers() { # a command on all workers at once
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
        echo "the request is $state: delete it and create it again" >&2
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
  # it outlives the connection; a preempted machine asks its own metadata, and saves in the seconds before its end
  on_workers "cd $FOLDER && export METADATA=$METADATA &&
    export JAX_COMPILATION_CACHE_DIR=\${JAX_COMPILATION_CACHE_DIR:-$(printf '%q' "$workdir")/cache/compiled} &&
    { nohup setsid launch/run.sh .venv/bin/python train.py$flags >>../$FOLDER.log 2>&1 </dev/null &
    echo \$! >../$FOLDER.pid; }"
}

log() {
  tpus tpu-vm ssh "$NAME" --worker=0 --command="tail -n 40 $FOLDER.log"
  on_workers "if kill -0 \$(cat $FOLDER.pid) 2>/dev/null; then echo trains; else echo has ended; fi"
}

stop() { on_workers "kill -TERM \$(cat $FOLDER.pid)"; }

delete() { tpus queued-resources delete "$NAME" --force --quiet; }

action=${1:-}
case $action in
  create | install | run | log | stop | delete) "$@" ;;
  *)
    echo "the action is '$action': use create, install, run, log, stop or delete" >&2
    exit 2
    ;;
esac

#!/usr/bin/env bash
# Run one training process: start it, forward signals to it, and restart it if that helps.
#
#   launch/run.sh python train.py --config=NAME --workdir=DIR [--distributed ...]
#
# Exits with 0 when training is complete, with 75 when the same command would continue it, and otherwise with the status
# of the training, which somebody must look at first (2: an error in the command, the configuration or the data).
set -euo pipefail

RETRIES=${RETRIES:-20}             # maximum number of restarts after status 75; 0 if a scheduler restarts the job
PAUSE=${PAUSE:-10}                 # seconds before a restart
PASS_SIGNALS=${PASS_SIGNALS:-yes}  # no: the scheduler signals the training directly (Slurm)
METADATA=${METADATA:-}             # address of this machine's Google metadata, polled for termination notices
POLL=${POLL:-5}                    # seconds between two polls
AGAIN=75

if [[ ${JAX_COMPILATION_CACHE_DIR:-} == *://* ]]; then
  unset JAX_COMPILATION_CACHE_DIR # not written to a store directly: train.py keeps programs of such runs beside the run
fi

child='' watcher='' stopped='' passed=''

pass_on() { # only once: a second signal would end the training without saving
  if [[ $PASS_SIGNALS == yes && -n $child && -z $passed ]]; then
    passed=yes
    kill -TERM "$child" 2>/dev/null || true
  fi
}

stop() {
  stopped=yes
  pass_on
}

asked() { # print a metadata value, or nothing
  curl -fsS --max-time 3 -H 'Metadata-Flavor: Google' "$METADATA/$1" 2>/dev/null || true
}

watch() { # until this machine is about to be terminated
  while sleep "$POLL"; do
    if [[ $(asked maintenance-event) == TERMINATE* || $(asked preempted) == TRUE ]]; then
      echo "run.sh: this machine is about to be terminated" >&2
      kill -TERM $$
      return
    fi
  done
}

trap stop TERM
trap 'stopped=yes' INT # Ctrl-C reaches the training directly, as a process of the same terminal
trap '[[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true' EXIT

if [[ -n $METADATA ]]; then
  watch &
  watcher=$!
fi

for ((start = 0; ; start++)); do
  (
    trap - INT # bash makes background commands ignore Ctrl-C
    exec "$@"
  ) &
  child=$!
  if [[ -n $stopped ]]; then
    pass_on # the signal arrived before the child was started
  fi
  while :; do
    status=0
    wait "$child" || status=$?
    if ((status <= 128)) || ! kill -0 "$child" 2>/dev/null; then
      break # otherwise a signal has interrupted `wait`
    fi
  done
  child=''
  case $status in
    # killed, or aborted by JAX because another process was lost; the others exit with 75
    134 | 137) status=$AGAIN ;;
  esac
  if [[ -n $stopped ]] && ((status == 0 || status == 143)); then
    status=$AGAIN # it has saved; if training was already complete, the next start has nothing to do
  fi
  if [[ -n $stopped ]] || ((status != AGAIN || start >= RETRIES)); then
    exit "$status"
  fi
  echo "run.sh: training exited with status $AGAIN; restarting in $PAUSE s" >&2
  sleep "$PAUSE" &
  wait $! || true
  if [[ -n $stopped ]]; then
    exit $AGAIN
  fi
done

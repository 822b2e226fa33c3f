#!/usr/bin/env bash
# One process of a training: starts it, passes signals on to it, and starts it again where that helps.
#
#   launch/run.sh python train.py --config=NAME --workdir=DIR [--distributed ...]
#
# Ends with 0 when training is over, with 75 when the same command would continue it, and otherwise with the status of
# the training, which somebody has to read first (2: a mistake in the command, the configuration or the data).
set -euo pipefail

RETRIES=${RETRIES:-20}             # further starts after status 75; 0 where a scheduler starts the job again
PAUSE=${PAUSE:-10}                 # seconds before a further start
PASS_SIGNALS=${PASS_SIGNALS:-yes}  # no: the scheduler signals the training itself (Slurm)
METADATA=${METADATA:-}             # address of Google's metadata of this machine, asked for notices of its end
POLL=${POLL:-5}                    # seconds between two such questions
AGAIN=75

if [[ ${JAX_COMPILATION_CACHE_DIR:-} == *://* ]]; then
  unset JAX_COMPILATION_CACHE_DIR # JAX keeps no programs in an object store; train.py then keeps them beside the run
fi

child='' watcher='' stopped='' passed=''

pass_on() { # once: a second signal would end the training without a save
  if [[ $PASS_SIGNALS == yes && -n $child && -z $passed ]]; then
    passed=yes
    kill -TERM "$child" 2>/dev/null || true
  fi
}

stop() {
  stopped=yes
  pass_on
}

asked() { # a value of the metadata, or nothing
  curl -fsS --max-time 3 -H 'Metadata-Flavor: Google' "$METADATA/$1" 2>/dev/null || true
}

watch() { # until this machine is about to end
  while sleep "$POLL"; do
    if [[ $(asked maintenance-event) == TERMINATE* || $(asked preempted) == TRUE ]]; then
      echo "run.sh: this machine is about to end" >&2
      kill -TERM $$
      return
    fi
  done
}

trap stop TERM
trap 'stopped=yes' INT # Ctrl-C reaches the training by itself, as a process of the same terminal
trap '[[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true' EXIT

if [[ -n $METADATA ]]; then
  watch &
  watcher=$!
fi

for ((start = 0; ; start++)); do
  (
    trap - INT # bash lets background commands ignore Ctrl-C
    exec "$@"
  ) &
  child=$!
  if [[ -n $stopped ]]; then
    pass_on # the signal came before there was a child to pass it to
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
    # killed, or aborted by JAX because another process was lost: the others end with 75
    134 | 137) status=$AGAIN ;;
  esac
  if [[ -n $stopped ]] && ((status == 0 || status == 143)); then
    status=$AGAIN # it has saved; where it was at its end, the next start finds nothing to do
  fi
  if [[ -n $stopped ]] || ((status != AGAIN || start >= RETRIES)); then
    exit "$status"
  fi
  echo "run.sh: the training ended with status $AGAIN and starts again in $PAUSE s" >&2
  sleep "$PAUSE" &
  wait $! || true
  if [[ -n $stopped ]]; then
    exit $AGAIN
  fi
done

#!/usr/bin/env bash
# Runs a job file on a Dask cluster of its own: a scheduler and workers in one SLURM allocation.
#
#   sbatch --nodes=4 --ntasks-per-node=16 scripts/slurm_job.sh job.yaml [arguments of tilewise run]
#   WORKERS=2 bash scripts/slurm_job.sh job.yaml --overwrite             the same on this machine, without SLURM
#
# One task of SLURM is one worker process with one thread. The environment in which this is submitted has tilewise on
# its PATH, on every node. Everything that the job names, and $FOLDER, lies on a file system that all nodes see.
#
#   FOLDER   where scheduler file and logs go        default: the current directory
#   WORKERS  worker processes without SLURM          default: 2
#   MEMORY   limit of one worker                     default: its part of the node's, as SLURM grants it; else "auto"
#   TIMEOUT  how long to wait for all workers        default: "10 min"
#
# Exits with the exit code of tilewise, and takes scheduler and workers down whatever happens.
#
#SBATCH --job-name=tilewise
#SBATCH --ntasks=8
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=4G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=tilewise-%j.log
set -euo pipefail

if [[ $# -lt 1 ]]; then
    echo "usage: [sbatch OPTIONS | WORKERS=n bash] slurm_job.sh JOB.yaml [arguments of tilewise run]" >&2
    exit 2
fi
job="$1"
shift

folder="$(mkdir -p "${FOLDER:-.}" && cd "${FOLDER:-.}" && pwd)"
name="${SLURM_JOB_ID:-$$}"
file="$folder/scheduler-$name.json"
log="$folder/cluster-$name.log"
# A worker has one thread, and so have the libraries within it.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Dask's nanny would return every freed chunk to the system, and fault it in again.
export DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON__MALLOC_TRIM_THRESHOLD_=67108864

started=() # the scheduler first, then workers
stop() {
    local pid
    kill -TERM "$@" 2>/dev/null || true
    for pid in "$@"; do
        for _ in $(seq 150); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}
take_down() {
    trap - EXIT
    trap '' INT TERM
    if [[ ${#started[@]} -gt 1 ]]; then
        stop "${started[@]:1}"
    fi
    if [[ ${#started[@]} -gt 0 ]]; then
        stop "${started[0]}"
    fi
    rm -f "$file"
}
trap take_down EXIT

if [[ -n "${SLURM_JOB_ID:-}" ]] && command -v srun >/dev/null; then
    workers="${SLURM_NTASKS:?}"
    megabytes="${SLURM_MEM_PER_CPU:-}"
    if [[ -n "$megabytes" ]]; then
        memory="${MEMORY:-$((megabytes * ${SLURM_CPUS_PER_TASK:-1}))MiB}"
    elif [[ -n "${SLURM_MEM_PER_NODE:-}" ]]; then
        memory="${MEMORY:-$((SLURM_MEM_PER_NODE * ${SLURM_JOB_NUM_NODES:-1} / workers))MiB}"
    else
        memory="${MEMORY:-auto}"
    fi
    launch() { # number of processes, command...: beside each other within the allocation
        local count="$1"
        shift
        srun --ntasks="$count" --overlap --kill-on-bad-exit=0 "$@" >>"$log" 2>&1 &
        started+=($!)
    }
    interface=()
else
    workers="${WORKERS:-2}"
    memory="${MEMORY:-auto}"
    launch() {
        local count="$1"
        shift
        for _ in $(seq "$count"); do
            "$@" >>"$log" 2>&1 &
            started+=($!)
        done
    }
    interface=(--host 127.0.0.1)
fi

rm -f "$file"
launch 1 dask scheduler --scheduler-file "$file" --port 0 --no-dashboard --no-show "${interface[@]}"
launch "$workers" dask worker --scheduler-file "$file" --nthreads 1 --no-dashboard --memory-limit "$memory" \
    --death-timeout 600 --local-directory "${TMPDIR:-/tmp}" "${interface[@]}"

# In the background, so that a signal is passed on to it at once.
# What the job file says of its cluster is replaced whole.
cluster="{kind: scheduler-file, scheduler_file: \"$file\", wait_for: $workers, timeout: \"${TIMEOUT:-10 min}\"}"
tilewise run "$job" --set "cluster=$cluster" "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null || true' TERM
trap 'kill -INT "$run" 2>/dev/null || true' INT
code=0
wait "$run" || code=$?
# A signal ends the wait, not the run: its own exit code is what counts.
while kill -0 "$run" 2>/dev/null; do
    code=0
    wait "$run" || code=$?
done
if [[ $code -eq 1 ]]; then
    echo "scheduler and workers have written to $log" >&2
fi
exit "$code"

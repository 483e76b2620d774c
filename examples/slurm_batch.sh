#!/bin/bash
# Train within one Slurm allocation: a worker on each node, and the controller on the first one. Needs no machine that stays connected.
#     sbatch --nodes=4 --time=04:00:00 examples/slurm_batch.sh --task mix --steps 500 --out /shared/runs/mix
# What follows the script's name goes to `zorplex-rl train`. Its run folder has to outlive the job; no other node needs to see it.
#SBATCH --job-name=zorplex
#SBATCH --ntasks-per-node=1
# A node that fails takes no other along. The first one is the exception: the controller runs there.
#SBATCH --no-kill
# Two minutes before the time is up, the run is asked to stop, and writes a checkpoint.
#SBATCH --signal=B:TERM@120
set -u
port=4444
# Through TLS if ZORPLEX_TLS names one of the folders that `zorplex-rl certificates` has made: each node takes its own from beside it. Else the
# network of the nodes has to be one that you trust.
scheme=tcp files=
if [ -n "${ZORPLEX_TLS:-}" ]; then scheme=tls files=$(dirname "$ZORPLEX_TLS"); fi
encryption() { if [ -n "$files" ]; then echo "--tls $files/$(hostname)"; else echo --insecure; fi; }
export files; export -f encryption
# What the workers and the controller share; Slurm passes it on to the nodes.
export ZORPLEX_SECRET=${ZORPLEX_SECRET:-$(head -c 24 /dev/urandom | base64)}
srun --no-kill --kill-on-bad-exit=0 bash -c "exec zorplex-rl worker --listen $scheme://\$(hostname):$port \$(encryption)" &
workers=$!
hosts=$(scontrol show hostnames | sed "s,.*,$scheme://&:$port," | paste -sd, -)
zorplex-rl train --hosts "attach:$hosts" $(encryption) "$@" &
training=$!
trap 'kill -TERM $training' TERM
wait $training
code=$?
# Above 128, the trap has ended the first wait, not the run.
if kill -0 $training 2>/dev/null; then wait $training; code=$?; fi
# They would wait for the next run.
scancel --signal=TERM "$SLURM_JOB_ID.0" || kill -TERM $workers
wait
exit $code
